#pragma once

#include "runtime/model/model_config.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "runtime/model/tokenizer.hpp"
#include "runtime/tensor_view.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::model {

/// S sequences laid end to end without padding: N tokens in all. Attention never crosses from one
/// to another.
struct packed_batch {
  at::Tensor tokens;    ///< [N] int64
  at::Tensor positions; ///< [N] int64, each sequence from 0
  std::vector<std::int32_t> cu_seqlens; ///< [S + 1]: 0, end of the first, …, N
  /// [S] or empty: the sequence that this one continues, or −1 (see segments in attention.hpp). Its
  /// positions go on from there.
  std::vector<std::int32_t> prefixes;
};

/// Packs sequences given as plain vectors; empty ones are allowed.
packed_batch pack(const std::vector<std::vector<std::int32_t>>& sequences);

struct named_tensor {
  std::string name;
  at::Tensor value;
};

/// The decoder-only transformer as the trainer sees it: fp32 parameters that take gradients. On the CPU
/// its operations are fused kernels; on other devices they are composed of ATen's.
///
/// All parameters are views of one flat buffer (and, on request, all gradients of another), so that
/// an optimizer, a norm or an average is one operation instead of one per tensor.
class transformer {
public:
  /// Parameters are allocated and zero: call initialise(), or fill views(). fp32 on the CPU unless
  /// `options` says otherwise. Throws user_error when the configuration is impossible.
  /// With a `group`, `config` is the whole model's, and this one rank's part of it: what takes part
  /// in a batch is the whole group, which then gets the same hidden states on every rank.
  explicit transformer(model_config config, const at::TensorOptions& options = {},
                       std::shared_ptr<const tensor_group> group = nullptr);
  ~transformer();
  transformer(transformer&&) noexcept;
  transformer& operator=(transformer&&) noexcept;

  /// Random weights: the same seed gives the same bits on every machine.
  void initialise(std::uint64_t seed);

  /// Final hidden states after the last norm, [N, d]. Differentiable unless frozen or under
  /// NoGradGuard. Throws invariant_error on a malformed batch.
  [[nodiscard]] at::Tensor hidden(const packed_batch& batch) const;

  /// [V, d]: logits are hidden · head_weightᵀ. The embedding where the head is tied. In a group, this
  /// rank's part of the vocabulary.
  [[nodiscard]] at::Tensor head_weight() const;

  /// hidden · headᵀ, [N, V]. For tests and small batches; training uses token_logprobs.
  [[nodiscard]] at::Tensor logits(const packed_batch& batch) const;

  /// Leaves, in parameter_shapes() order. Update their values in place under NoGradGuard.
  [[nodiscard]] const std::vector<named_tensor>& parameters() const;

  /// The same memory without torch, for transfer and files.
  [[nodiscard]] std::vector<tensor_view> views() const;

  /// All parameters in one [P] tensor: the memory that parameters() are views of.
  [[nodiscard]] at::Tensor flat() const;
  /// Where it lies. Batches must be there, too.
  [[nodiscard]] c10::Device device() const;

  /// Makes every parameter's gradient a view of one [P] tensor, zeroed, and returns it. Backward
  /// then adds into it: zero it in place between steps, never reset the gradients.
  at::Tensor flat_gradient();

  /// Whether parameters take gradients (true at first).
  void requires_gradient(bool on);

  /// A copy with its own parameters; frozen, for reference and old policies. On the same device unless
  /// another one is named.
  [[nodiscard]] transformer frozen_copy(std::optional<c10::Device> device = std::nullopt) const;
  /// Copies the other's values, from whatever device; both must have the same configuration.
  void copy_from(const transformer& other);

  /// Whether layers compute their inner values again in the backward pass instead of keeping them:
  /// a third more computation, a fraction of the memory.
  void recompute_activations(bool on);

  /// What layers multiply in, fp32 at first. In bf16 (Micikevicius et al., 2018) each weight is cast
  /// as it is used, and values between products are kept in bf16 for the backward pass; parameters
  /// and their gradients, the residual stream, norms, softmax and the output layer stay fp32.
  /// frozen_copy() has it too.
  void compute_in(at::ScalarType type);

  /// Of this rank's part, where there is a group.
  [[nodiscard]] const model_config& config() const;
  /// Of the whole model.
  [[nodiscard]] const model_config& whole_config() const;
  /// Null where the model is all here.
  [[nodiscard]] const std::shared_ptr<const tensor_group>& group() const;

private:
  struct parts;
  std::unique_ptr<parts> parts_;
};

/// A model folder with everything needed to train or generate.
struct loaded_model {
  transformer network;
  std::unique_ptr<tokenizer> tokens; ///< null where the folder has none
};

/// Reads config.json, safetensors and tokenizer. Throws user_error naming file and tensor.
loaded_model load_model(const std::filesystem::path& folder);

} // namespace millrace::model
