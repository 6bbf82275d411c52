#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>

namespace millrace {

/// Closes connections to one of this process's ports whose other end has said nothing: CAF would keep
/// them for as long as they like. A node greets at once; whoever has not after `patience_s` is none.
/// A thread of its own looks once a second.
class silent_strangers {
public:
  /// `closed` is called, on that thread, with how many were closed at a look, when any were.
  silent_strangers(std::uint16_t port, double patience_s, std::function<void(int)> closed);
  ~silent_strangers();
  silent_strangers(const silent_strangers&) = delete;
  silent_strangers& operator=(const silent_strangers&) = delete;

private:
  void look();

  std::uint16_t port_;
  double patience_s_;
  std::function<void(int)> closed_;
  std::map<int, double> silent_since_; ///< by descriptor
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

} // namespace millrace
