// A policy over several ranks: its tensors on their way between them, and what the others do.

#include "runtime/config/config.hpp"
#include "runtime/error.hpp"
#include "runtime/model/tensor_parallel.hpp"
#include "trainer/full_device.hpp"
#include "trainer/policy_parts.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <cstdlib>

namespace millrace::trainer {

model::transformer policy::parts::part_of(model::transformer& all, rank_mesh* mesh,
                                         const settings& s) {
  const auto device = trainer_device(s, mesh);
  if (mesh && mesh->grid.tp > 1)
    return model::transformer(all.config(), device,
                              mesh->tensor_group(s.trainer.parallel.sequence));
  if (device.is_cpu())
    return std::move(all);
  model::transformer there(all.config(), device);
  there.copy_from(all);
  return there;
}

void policy::parts::lead(const std::string& what, const std::string& content) const {
  if (mesh && mesh->rank == 0)
    mesh->post(what, content);
}

// -- tensors -----------------------------------------------------------------------------------------

std::int64_t policy::parts::whole_size(const std::string& name, int dimension) const {
  std::int64_t size = 0;
  for (int r = 0; r < mesh->grid.tp; ++r) {
    auto slice = model::slice_of(network.whole_config(), name, r, mesh->grid.tp);
    ensure(slice.dimension == dimension, name + " is not split like this");
    size += slice.length;
  }
  return size;
}

void policy::parts::hand_out(const std::string& name, at::Tensor whole_value,
                             at::Tensor own) const {
  auto slice = model::slice_of(network.whole_config(), name, mesh->tensor_index(), mesh->grid.tp);
  if (mesh->rank != 0) {
    auto shape = own.sizes().vec();
    if (slice.dimension >= 0)
      shape[static_cast<std::size_t>(slice.dimension)] = whole_size(name, slice.dimension);
    whole_value = at::empty(shape, own.options());
  }
  whole_value = whole_value.to(own.device()).contiguous();
  mesh->world().broadcast(whole_value, 0);
  own.copy_(slice.of(whole_value));
}

void policy::parts::gather(const std::string& name, const at::Tensor& own,
                           at::Tensor whole_value) const {
  for (int r = 0; r < mesh->grid.tp; ++r) {
    auto slice = model::slice_of(network.whole_config(), name, r, mesh->grid.tp);
    if (slice.dimension < 0) {
      if (mesh->rank == 0)
        whole_value.copy_(own);
      return;
    }
    auto shape = own.sizes().vec();
    shape[static_cast<std::size_t>(slice.dimension)] = slice.length;
    auto piece = r == mesh->tensor_index() ? own.clone(at::MemoryFormat::Contiguous)
                                           : at::empty(shape, own.options());
    mesh->tensor().broadcast(piece, r);
    if (mesh->rank == 0)
      slice.of(whole_value).copy_(piece);
  }
}

void policy::parts::spread_model() const {
  if (!mesh)
    return;
  at::NoGradGuard no_grad;
  if (mesh->grid.tp == 1) {
    auto flat = network.flat().detach();
    mesh->world().broadcast(flat, 0);
  } else {
    for (std::size_t i = 0; i < network.parameters().size(); ++i) {
      const auto& p = network.parameters()[i];
      hand_out(p.name, whole ? whole->parameters()[i].value.detach() : at::Tensor(),
               p.value.detach());
    }
  }
  mesh->agree_on_results();
}

void policy::parts::collect_model() {
  if (!mesh || mesh->grid.tp == 1 || mesh->data_index() != 0)
    return;
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < network.parameters().size(); ++i) {
    const auto& p = network.parameters()[i];
    gather(p.name, p.value.detach(), whole ? whole->parameters()[i].value.detach() : at::Tensor());
  }
}

// -- following ---------------------------------------------------------------------------------------

std::shared_ptr<rank_mesh> with_ranks(const settings& s, std::shared_ptr<rank_mesh> mesh,
                                      const model::model_config& config) {
  if (s.trainer.parallel.tp > 1)
    static_cast<void>(model::local_config(config, 0, s.trainer.parallel.tp)); // told before they start
  if (!mesh)
    mesh = start_ranks(s);
  if (mesh)
    mesh->post("create", nlohmann::json{{"settings", resolved_json(s)},
                                        {"model", model::to_json(config)}}.dump());
  return mesh;
}

void policy::parts::follow() {
  for (;;) {
    auto order = mesh->next();
    if (order.what == "warm_up") {
      do_warm_up(demonstrations_from_bytes(order.content));
    } else if (order.what == "step") {
      auto given = step_from_bytes(order.content);
      do_step(at, given.groups, given.supply);
    } else if (order.what == "collect") {
      std::vector<at::Tensor> memory;
      collected_tensors(memory);
      keep_state();
    } else if (order.what == "shard") {
      if (auto plan = shards(); plan->writes(mesh->rank))
        shard.begin(copy_of(own_tensors()), order.content, plan->file(mesh->rank));
    } else if (order.what == "restore") {
      auto state = nlohmann::json::parse(order.content);
      restore(state);
      fill_tensors({});
      restore_rest(state);
    } else {
      ensure(order.what == "end", "rank 0 asks for \"" + order.what + "\", which no rank knows");
      return;
    }
  }
}

void follow_rank(int rank, const std::string& endpoint, double timeout_s,
                 const std::function<void(const settings&)>& prepare) {
  auto colon = endpoint.rfind(':');
  auto port = colon == std::string::npos ? 0 : std::atoi(endpoint.c_str() + colon + 1);
  if (port < 1 || port > 65535)
    throw user_error("--store: found \"" + endpoint + "\", expected HOST:PORT");
  auto timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
  auto mesh = rank_mesh::join(rank, rendezvous::join(endpoint.substr(0, colon),
                                                     static_cast<std::uint16_t>(port), timeout));
  auto order = mesh->next();
  if (order.what == "end")
    return;
  ensure(order.what == "create", "rank 0 begins with \"" + order.what + "\"");
  auto given = nlohmann::json::parse(order.content);
  auto s = parse_settings(given.at("settings").get<std::string>(), "the settings of rank 0");
  if (prepare)
    prepare(s);
  prepare_process(s);
  auto config = model::from_json(given.at("model"), "the model of rank 0");
  within_trainer_memory(s, [&] {
    policy::parts(s, nullptr, mesh, {model::transformer(config), nullptr}).follow();
  });
}

} // namespace millrace::trainer
