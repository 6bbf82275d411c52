#pragma once

// Millrace's plugin interface: all that a plugin includes. C++20 and the standard library, nothing
// else. A plugin is a shared library that registers factories by name:
//
//   #include <millrace/plugin.hpp>
//   using namespace millrace::plugin;
//
//   struct brevity : reward {
//     explicit brevity(const parameters& p) : limit(p.integer("limit", 80)) {}
//     judgement judge(const question&, std::string_view answer, finish) const override {
//       return {.reward = answer.size() <= limit ? 1.0 : 0.0};
//     }
//     std::size_t limit;
//   };
//
//   MILLRACE_PLUGIN("brevity", "Rewards short answers") {
//     add.reward<brevity>("brevity", "1 for answers of at most `limit` bytes");
//   }
//
// and the configuration of a run names it, and what it registered as if it were built in:
//
//   "plugins": [{"path": "libbrevity.so"}],
//   "reward": {"kind": "brevity", "params": {"limit": 40}}
//
// What holds for every kind:
//   - A factory is called with the parameters of the place that names it. It throws when they are
//     wrong (parameters::refuse says where); the run then ends before it starts, with the text.
//   - Whatever a method throws is caught and told with the plugin's file, kind and name. What that
//     costs is said at each kind.
//   - Methods marked const are called from several threads at once; others from one at a time.
//   - A plugin is never unloaded.
//   - Plugin and program must be built with the same C++ standard library; this is checked.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::plugin {

/// Changes when a plugin compiled against an older header would not work any more.
inline constexpr std::uint32_t abi_version = 1;

/// The C++ library and its variant, which decide how strings and exceptions look in memory.
#if defined(_LIBCPP_VERSION)
inline constexpr const char* toolchain = "libc++";
#elif defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
inline constexpr const char* toolchain = "libstdc++, old strings";
#else
inline constexpr const char* toolchain = "libstdc++";
#endif

// -- parameters ------------------------------------------------------------------------------------

/// What the configuration gives a factory: a JSON object. Keys that nobody reads are an error of the
/// configuration, unless json() was called: then the plugin checks them itself.
class parameters {
public:
  virtual ~parameters() = default;
  /// The object as JSON text, for a parser of the plugin's own.
  [[nodiscard]] virtual const std::string& json() const = 0;
  /// The value of a key, or what is used without. \throws when it is of another type
  [[nodiscard]] virtual double number(std::string_view key, double otherwise) const = 0;
  [[nodiscard]] virtual std::int64_t integer(std::string_view key, std::int64_t otherwise) const = 0;
  [[nodiscard]] virtual bool boolean(std::string_view key, bool otherwise) const = 0;
  [[nodiscard]] virtual std::string text(std::string_view key, std::string otherwise) const = 0;
  /// Throws an error that names the key's place in the configuration, what it holds and `expected`.
  [[noreturn]] virtual void refuse(std::string_view key, std::string_view expected) const = 0;
  /// The `config` of this plugin in the list `plugins`, as JSON text: what all of its factories share.
  [[nodiscard]] virtual const std::string& plugin_config() const = 0;
};

// -- what several kinds speak of -------------------------------------------------------------------

struct question {
  std::int64_t id = 0;
  std::string text{};  ///< what the model reads
  std::string answer{};///< the reference; may be empty
};

/// How an answer ended: by itself, at the token limit, or it was called off.
enum class finish : std::uint8_t { stop, length, cancelled };

/// How tokens are to be sampled.
struct sampling {
  float temperature = 1; ///< 0: the likeliest token
  float top_p = 1;       ///< 1: off
  float min_p = 0;       ///< 0: off
  std::int32_t top_k = 0;      ///< 0: off
  std::int32_t max_tokens = 0; ///< generated tokens at most
  std::int32_t min_tokens = 0;
};

// -- rewards: "reward": {"kind": NAME, "params": {…}} ----------------------------------------------

struct judgement {
  double reward = 0;
  bool correct = false; ///< what accuracy counts, apart from how it is paid
  bool judged = true;   ///< false: there was nothing to compare with
  std::string detail{}; ///< one line on what was found
};

/// Judges answers. When judge() throws, the answer counts as failed: it is judged again up to
/// rollout.max_attempts times, then its group is dropped, with the text as the reason.
class reward {
public:
  virtual ~reward() = default;
  [[nodiscard]] virtual judgement judge(const question& asked, std::string_view answer,
                                        finish how) const = 0;
};

// -- prompt sources: "data": {"source": NAME, "params": {…}} ---------------------------------------

/// Prompts by index, training and held-out ones apart. Pure: the same index gives the same prompt,
/// in every process. Shuffling (data.shuffle) and epochs are the runtime's. What it throws ends the
/// run.
class prompt_source {
public:
  virtual ~prompt_source() = default;
  /// Training prompts, at least 1.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// Training prompt `index`, from 0 to below size(). The id is set by the runtime.
  [[nodiscard]] virtual question at(std::int64_t index) const = 0;
  [[nodiscard]] virtual std::int64_t held_out_size() const { return 0; }
  [[nodiscard]] virtual question held_out(std::int64_t) const { return {}; }
  /// A good answer, for the supervised warm-up; empty: none.
  [[nodiscard]] virtual std::string demonstration(const question&) const { return {}; }
  /// Every character of prompts and demonstrations, for the tokenizer of a model made from scratch.
  [[nodiscard]] virtual std::string alphabet() const { return {}; }
  /// Names the data and its options: a resumed run must find the same.
  [[nodiscard]] virtual std::string fingerprint() const = 0;
};

// -- environments: "rollout": {"environment": {"name": NAME, "params": {…}}} -----------------------

struct turn {
  bool model = false; ///< the model wrote it; otherwise the environment
  std::string text{};
};

/// What an environment makes of the model's last turn.
struct reaction {
  std::string text{};    ///< what the model reads next (a tool's output); not trained on
  bool done = true;      ///< the conversation is over: reward and correct hold
  double reward = 0;
  bool correct = false;
  std::string detail{};
};

/// A conversation: the model writes until its stop token, the environment answers, and so on, within
/// one rollout and its token limit. What it throws ends the conversation as failed.
class environment {
public:
  virtual ~environment() = default;
  /// `turns` alternate, beginning and ending with the model's. Pure: state belongs into the turns.
  /// With finish::length the model had no room left: whatever is returned, it is over.
  [[nodiscard]] virtual reaction react(const question& asked, std::span<const turn> turns,
                                       finish how) const = 0;
};

// -- losses: "algorithm": {"loss": {"name": NAME, "params": {…}}} ----------------------------------

/// A micro-batch: N tokens of S sequences, one after another. Log-probs and advantages are 0 where
/// `mask` is 0.
struct loss_inputs {
  std::span<const double> logp_new;      ///< [N] log θ of the sampled token
  std::span<const double> logp_prox;     ///< [N] log prox; empty unless asked for
  std::span<const double> logp_behaviour; ///< [N] log μ; empty unless asked for
  std::span<const double> advantages;    ///< [N]
  std::span<const std::uint8_t> mask;    ///< [N] 1: trained on
  std::span<const std::int32_t> cu_seqlens; ///< [S + 1] where sequences begin, and N
};

struct loss_outputs {
  std::span<double> value;      ///< [N] each token's loss, before aggregation; 0 at the start
  std::span<double> gradient;   ///< [N] d value[i] / d logp_new[i]; 0 at the start
  std::span<std::uint8_t> keep; ///< [N] 1 at the start; 0 takes the token out of the sum
  std::span<std::uint8_t> clipped; ///< [N] 0 at the start; only counted
};

/// A policy loss per token. Masks, aggregation (algorithm.aggregation), KL and statistics are the
/// runtime's, as for built-in losses. What it throws ends the run.
class loss {
public:
  virtual ~loss() = default;
  [[nodiscard]] virtual bool needs_prox() const { return true; }
  [[nodiscard]] virtual bool needs_behaviour() const { return false; }
  /// Whether a token's value depends on others of its sequence: sequences then stay whole.
  [[nodiscard]] virtual bool looks_at_sequences() const { return false; }
  virtual void compute(const loss_inputs& in, const loss_outputs& out) const = 0;
  /// Only for a loss where value[i] depends on other tokens' logp_new: fills `into` [N] with
  /// Σ_i upstream[i] · d value[i] / d logp_new[j] and returns true. `gradient` is then not read.
  virtual bool backward(const loss_inputs&, std::span<const double> /*upstream*/,
                        std::span<double> /*into*/) const {
    return false;
  }
};

// -- advantages: "algorithm": {"advantage": {"name": NAME, "params": {…}}} -------------------------

struct advantages {
  std::vector<double> values; ///< one per rollout; or one per token, rollout after rollout
  bool per_token = false;
};

/// Advantages of one group. What it throws ends the run.
class advantage {
public:
  virtual ~advantage() = default;
  /// `lengths`: trainable tokens of each rollout.
  [[nodiscard]] virtual advantages estimate(std::span<const double> rewards,
                                            std::span<const std::int32_t> lengths) const = 0;
};

// -- samplers: "generator": {"sampler": {"name": NAME, "params": {…}}} -----------------------------

struct drawn_token {
  std::int32_t token = -1;
  float logp = 0; ///< of the distribution really sampled from: what importance ratios are made of
};

/// Draws the next token. Called for every token: keep it cheap. What it throws ends the generator.
class sampler {
public:
  virtual ~sampler() = default;
  /// `logits` [V] may be overwritten. `draw` in [0, 1) is the only source of randomness, so that
  /// neither batching nor an interruption changes what is sampled. `forbidden` tokens must not come.
  [[nodiscard]] virtual drawn_token sample(std::span<float> logits, const sampling& how, double draw,
                                           std::span<const std::int32_t> forbidden) const = 0;
};

// -- generator back ends: "generator": {"backend": {"name": NAME, "params": {…}}} ------------------

/// One tensor of the new weights, by Hugging Face's name; contiguous, valid during install().
struct weight {
  std::string_view name;
  std::string_view type; ///< "f32", "bf16" or "i8" (then NAME_scale has its scales, f32, one a row)
  std::span<const std::int64_t> shape;
  const void* data = nullptr;
};

/// What a back end is made for.
struct generator_context {
  std::string model_config; ///< Hugging Face's config.json, as text
  std::int32_t vocabulary = 0;
  std::int32_t max_context = 0; ///< prompt and answer
  std::int32_t max_batch = 0;   ///< sequences at a time
  std::int32_t threads = 1;
};

struct sampled {
  std::uint64_t sequence = 0;
  drawn_token token;
};

/// Generates tokens with weights that change while it runs. The runtime keeps the sequences' books:
/// versions, stop tokens, limits, texts, and what goes on elsewhere when this fails. What it throws
/// ends the generator; its supervisor starts another.
class generator {
public:
  virtual ~generator() = default;
  /// A sequence to go on from these tokens (a prompt, or more). At most max_batch are there at once.
  virtual void start(std::uint64_t sequence, std::span<const std::int32_t> tokens,
                     const sampling& how, std::uint64_t seed) = 0;
  /// Forget it: it is finished, or was called off.
  virtual void end(std::uint64_t sequence) = 0;
  /// One decode step: at most one token for each sequence that was started and not ended.
  [[nodiscard]] virtual std::vector<sampled> step() = 0;
  /// New weights, between two steps. `keep_caches`: what was computed for running sequences stays;
  /// otherwise it must be computed again. Called once before the first start().
  virtual void install(std::span<const weight> weights, bool keep_caches) = 0;
};

// -- actors: "actors": [{"kind": NAME, "params": {…}}] ---------------------------------------------

/// A number that only grows, and one that is set. They show in `millrace top`, `inspect`, /metrics
/// and /introspect with the actor's other figures.
class counter {
public:
  virtual ~counter() = default;
  virtual void add(double amount = 1) = 0;
};
class gauge {
public:
  virtual ~gauge() = default;
  virtual void set(double value) = 0;
};

enum class level : std::uint8_t { debug, info, warning, error };

/// What the runtime does for an actor. Outlives it.
class actor_context {
public:
  virtual ~actor_context() = default;
  /// Names consist of a-z, 0-9 and _; Prometheus sees millrace_KIND_NAME (and _total for a counter).
  /// To be called in the factory only; valid as long as the context.
  virtual counter& count(std::string_view name, std::string_view help) = 0;
  virtual gauge& show(std::string_view name, std::string_view help) = 0;
  virtual void log(level how, std::string_view text) = 0;
  /// Where the run leaves its files.
  [[nodiscard]] virtual const std::string& run_directory() const = 0;
  /// Seconds on the run's clock.
  [[nodiscard]] virtual double now() const = 0;
};

struct scored_answer {
  std::string_view text;
  double reward = 0;
  bool correct = false;
  finish how = finish::stop;
  std::int32_t prompt_length = 0;         ///< tokens
  std::span<const std::int32_t> tokens;   ///< prompt and answer
  std::span<const float> behaviour_logp;  ///< one per token
  std::span<const std::int32_t> versions; ///< that sampled the token; −1: not sampled
};

/// A group with all its rewards.
struct scored_group {
  std::int64_t id = 0;
  std::string_view question, reference;
  std::span<const scored_answer> answers;
};

/// What a training step did.
struct step_report {
  std::int32_t trained_from = 0; ///< version
  std::int32_t published = 0;    ///< version
  std::span<const std::pair<std::string, double>> values; ///< as in metrics.jsonl
};

/// An actor in the stream, beside the others, supervised and shown like them. Each method is called
/// by one thread at a time, with nothing else waiting for it but what is said here.
class stream_actor {
public:
  virtual ~stream_actor() = default;
  /// Every group on its way from the rewards to the replay buffer, and a say in it: a text is the
  /// reason for which it is filtered (the ledger shows "filtered: KIND: reason"); an empty one lets
  /// it through. No answer within reward.timeout_s, or an exception: it goes through, and that is
  /// counted.
  [[nodiscard]] virtual std::string on_group(const scored_group&) { return {}; }
  virtual void on_step(const step_report&) {}
  /// About once a second.
  virtual void on_tick() {}
  /// The run ends.
  virtual void on_end() {}
};

// -- registration ----------------------------------------------------------------------------------

using reward_factory = std::function<std::unique_ptr<reward>(const parameters&)>;
using prompt_source_factory
  = std::function<std::unique_ptr<prompt_source>(const parameters&, std::uint64_t seed)>;
using environment_factory = std::function<std::unique_ptr<environment>(const parameters&)>;
using loss_factory = std::function<std::unique_ptr<loss>(const parameters&)>;
using advantage_factory = std::function<std::unique_ptr<advantage>(const parameters&)>;
using sampler_factory = std::function<std::unique_ptr<sampler>(const parameters&)>;
using generator_factory
  = std::function<std::unique_ptr<generator>(const parameters&, const generator_context&)>;
using actor_factory
  = std::function<std::unique_ptr<stream_actor>(const parameters&, actor_context&)>;

/// Takes a plugin's factories: each by a name that is unique among its kind, with a line of help.
/// add.reward<T>(name, help) makes T from `const parameters&`; the other form takes a function.
class registrar {
public:
  virtual ~registrar() = default;
  virtual void add_reward(std::string name, std::string help, reward_factory make) = 0;
  virtual void add_prompt_source(std::string name, std::string help, prompt_source_factory make) = 0;
  virtual void add_environment(std::string name, std::string help, environment_factory make) = 0;
  virtual void add_loss(std::string name, std::string help, loss_factory make) = 0;
  virtual void add_advantage(std::string name, std::string help, advantage_factory make) = 0;
  virtual void add_sampler(std::string name, std::string help, sampler_factory make) = 0;
  virtual void add_generator(std::string name, std::string help, generator_factory make) = 0;
  virtual void add_actor(std::string name, std::string help, actor_factory make) = 0;

  template <class T>
  void reward(std::string name, std::string help) {
    add_reward(std::move(name), std::move(help), make<T>());
  }
  /// T's constructor takes (const parameters&, std::uint64_t seed).
  template <class T>
  void prompt_source(std::string name, std::string help) {
    add_prompt_source(std::move(name), std::move(help), make<T>());
  }
  template <class T>
  void environment(std::string name, std::string help) {
    add_environment(std::move(name), std::move(help), make<T>());
  }
  template <class T>
  void loss(std::string name, std::string help) {
    add_loss(std::move(name), std::move(help), make<T>());
  }
  template <class T>
  void advantage(std::string name, std::string help) {
    add_advantage(std::move(name), std::move(help), make<T>());
  }
  template <class T>
  void sampler(std::string name, std::string help) {
    add_sampler(std::move(name), std::move(help), make<T>());
  }
  /// T's constructor takes (const parameters&, const generator_context&).
  template <class T>
  void generator(std::string name, std::string help) {
    add_generator(std::move(name), std::move(help), make<T>());
  }
  /// T's constructor takes (const parameters&, actor_context&).
  template <class T>
  void actor(std::string name, std::string help) {
    add_actor(std::move(name), std::move(help), make<T>());
  }

private:
  template <class T>
  static auto make() {
    return [](const parameters& p, auto&&... more) { return std::make_unique<T>(p, more...); };
  }
};

/// What the entry point returns. `abi` and `toolchain` stand first in every version.
struct descriptor {
  std::uint32_t abi = abi_version;
  const char* toolchain = nullptr;
  const char* name = nullptr;
  const char* description = nullptr;
  void (*declare)(registrar&) = nullptr;
};

} // namespace millrace::plugin

/// Once in a plugin, followed by a function body that registers its factories with `add`.
#define MILLRACE_PLUGIN(NAME, DESCRIPTION)                                                          \
  static void millrace_plugin_declare(::millrace::plugin::registrar& add);                          \
  extern "C" __attribute__((visibility("default"))) const ::millrace::plugin::descriptor*          \
  millrace_plugin_entry() {                                                                         \
    static const ::millrace::plugin::descriptor self{::millrace::plugin::abi_version,              \
                                                     ::millrace::plugin::toolchain, NAME,           \
                                                     DESCRIPTION, &millrace_plugin_declare};        \
    return &self;                                                                                   \
  }                                                                                                 \
  static void millrace_plugin_declare([[maybe_unused]] ::millrace::plugin::registrar& add)
