#pragma once

// The wheel's libtorch has Gloo inside, but not its headers, and c10d's ProcessGroupGloo.hpp includes
// them. It needs no more of them than these names: all is held by pointer.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace gloo {

class Context {
public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
} // namespace transport

namespace rendezvous {

class Store {
public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) = 0;
};

} // namespace rendezvous
} // namespace gloo
