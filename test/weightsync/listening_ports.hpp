#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <sys/types.h>

namespace millrace::weightsync {

/// The IPv4 TCP ports at which a process listens.
inline std::set<int> listening_ports(pid_t pid) {
  namespace fs = std::filesystem;
  std::set<std::string> inodes;
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code ended;
    auto target = fs::read_symlink(fd, ended).string();
    if (target.starts_with("socket:["))
      inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, skipped, inode;
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i)
      fields >> skipped;
    fields >> inode;
    if (state == "0A" && inodes.contains(inode))
      ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

inline long open_descriptors(pid_t pid) {
  namespace fs = std::filesystem;
  return std::distance(fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd"),
                       fs::directory_iterator());
}

} // namespace millrace::weightsync
