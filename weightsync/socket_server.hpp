#pragma once

#include "weightsync/socket_protocol.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace millrace::weightsync {

/// Answers reads of published memory over TCP: one thread, which sleeps while nobody asks. The
/// kernel copies out of that memory directly.
///
/// Whoever connects must greet with this server's secret, and within `patience_s`; others are cut,
/// and leave nothing behind.
class socket_server {
public:
  /// Listens at these names or addresses of this machine. Throws user_error where it can't.
  socket_server(const std::vector<std::string>& hosts, double patience_s);
  ~socket_server();
  socket_server(const socket_server&) = delete;
  socket_server& operator=(const socket_server&) = delete;

  [[nodiscard]] const socket_peer& peer() const { return peer_; }
  /// Lets those who have the returned key read this memory, until withdraw() has returned.
  secret publish(std::span<const std::byte> memory);
  void withdraw(const secret& region);

private:
  struct connection;

  void run();
  void admit(int listener);
  bool serve(connection& c, std::uint32_t events);
  bool receive(connection& c);
  bool take_in(connection& c);
  bool answer(connection& c);
  bool send_some(connection& c, bool& full);
  void watch(connection& c);
  void turn_away(double older_than);
  bool turn_away_oldest();

  double patience_s_;
  socket_peer peer_;
  std::vector<descriptor> listeners_;
  descriptor events_, wake_;
  std::mutex mutex_; // guards memory_; held while bytes of it are being sent
  std::map<secret, std::span<const std::byte>> memory_;
  std::unordered_map<int, std::unique_ptr<connection>> connections_; // the thread's own
  std::size_t strangers_ = 0; // connections that have not greeted
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

} // namespace millrace::weightsync
