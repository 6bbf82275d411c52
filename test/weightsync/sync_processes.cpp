#include "sync_processes.hpp"

#include "fixtures.hpp"
#include "test/patience.hpp"

#include "weightsync/choose_transport.hpp"
#include "weightsync/publisher.hpp"
#include "weightsync/pull.hpp"
#include "weightsync/stopwatch.hpp"
#include "weightsync/ucx_transport.hpp"

#include <cstring>

namespace millrace::weightsync {

namespace {

std::shared_ptr<transport> make(carriage by) {
  if (by == carriage::sockets)
    return choose_transport({"tcp"});
  if (by == carriage::layered)
    return choose_transport({});
  ucx_options o;
  o.transports = without_tcp;
  return std::make_shared<ucx_transport>(o);
}

tensor_set model() {
  tensor_set t;
  for (int i = 0; i < 3; ++i)
    t.add("layer" + std::to_string(i), dtype::i32, {1024, 1024});
  t.add("norm", dtype::i32, {77});
  return t;
}

std::uint32_t number_at(std::int32_t v, std::size_t tensor, std::int64_t i) {
  return static_cast<std::uint32_t>(v) * 2654435761U + static_cast<std::uint32_t>(i) * 40503U
         + static_cast<std::uint32_t>(tensor) * 97U;
}

void fill(tensor_set& t, std::int32_t v) {
  for (std::size_t k = 0; k < t.views().size(); ++k)
    for (std::int64_t i = 0; i < t.views()[k].elements(); ++i)
      reinterpret_cast<std::uint32_t*>(t.views()[k].data)[i] = number_at(v, k, i);
}

bool holds(const tensor_set& t, std::int32_t v) {
  for (std::size_t k = 0; k < t.views().size(); ++k)
    for (std::int64_t i = 0; i < t.views()[k].elements(); ++i)
      if (reinterpret_cast<const std::uint32_t*>(t.views()[k].data)[i] != number_at(v, k, i))
        return false;
  return true;
}

void run_trainer(channel& line, carriage by) {
  auto made = make(by);
  auto& carrier = *made;
  auto weights = model();
  publisher source(carrier, replicated(weights.views()), {2, trainer_process::lease_s});
  stopwatch clock;
  while (auto command = line.receive_text(600)) {
    auto now = clock.seconds();
    auto word = command->substr(0, command->find(' '));
    auto rest = command->substr(std::min(command->size(), word.size() + 1));
    if (word == "publish") {
      auto v = std::stoi(rest);
      fill(weights, v);
      auto m = source.publish({v}, weights.views(), now);
      line.send(m ? to_binary(*m) : std::vector<std::byte>());
    } else if (word == "acquire") {
      auto space = rest.find(' ');
      auto got = source.acquire(rest.substr(space + 1), {std::stoi(rest.substr(0, space))}, now);
      line.send(got ? "granted " + std::to_string(got.id) : "refused");
    } else if (word == "release") {
      source.release(std::stoull(rest), now);
    } else {
      return;
    }
  }
}

void run_generator(channel& line, carriage by) {
  auto made = make(by);
  auto& carrier = *made;
  auto staging = model();
  puller sink(carrier, staging.views(), replicated(staging.views()));
  while (auto timeout = line.receive_text(600)) {
    auto bytes = line.receive(test::patience_s);
    if (!bytes)
      return;
    auto m = manifest_from_binary(*bytes);
    pull_options how;
    how.timeout_s = std::stod(*timeout);
    auto report = sink.pull(m, how);
    if (!report.ready())
      line.send("failed: " + report.error);
    else
      line.send(holds(staging, m.number.value) ? "ready" : "torn");
  }
}

} // namespace

trainer_process::trainer_process(carriage by)
  : process_([&](channel& line) { run_trainer(line, by); }) {}

std::optional<manifest> trainer_process::publish(std::int32_t v) {
  process_.line().send("publish " + std::to_string(v));
  auto bytes = process_.line().receive(test::patience_s);
  if (!bytes || bytes->empty())
    return std::nullopt;
  return manifest_from_binary(*bytes);
}

std::optional<std::string> trainer_process::acquire(const std::string& receiver, std::int32_t v) {
  process_.line().send("acquire " + std::to_string(v) + " " + receiver);
  return process_.line().receive_text(10);
}

void trainer_process::release(const std::string& lease) {
  process_.line().send("release " + lease.substr(lease.find(' ') + 1));
}

generator_process::generator_process(carriage by)
  : process_([&](channel& line) { run_generator(line, by); }) {}

void generator_process::pull(const manifest& m, double timeout_s) {
  process_.line().send(std::to_string(timeout_s));
  process_.line().send(to_binary(m));
}

std::optional<std::string> generator_process::result(double timeout_s) {
  return process_.line().receive_text(timeout_s);
}

} // namespace millrace::weightsync
