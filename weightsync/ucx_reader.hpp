#pragma once

#include "weightsync/transport.hpp"
#include "weightsync/ucx_worker.hpp"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::weightsync {

class ucx_caretaker;

/// Reads by ucp_get, or, where the owner's memory can be mapped (same machine), by memcpy.
class ucx_reader : public reader {
public:
  /// `caretaker`: where strangers may come to the worker's port; else empty.
  explicit ucx_reader(std::shared_ptr<ucx_context> context,
                      std::shared_ptr<ucx_caretaker> caretaker = nullptr);
  ~ucx_reader() override;

  void post(std::uint64_t tag, const read_request& request) override;
  std::vector<completion> poll(double wait_s) override;
  void cancel() override;
  /// Whether there is any way from here to that memory's owner.
  bool reaches(const remote_region& region);
  /// Does what is due, unless the reader is busy with that itself. From any thread.
  void look_after();

private:
  struct remote_key {
    ucp_rkey_h handle = nullptr;
    const std::byte* mapped = nullptr; ///< of the region's first byte, where it can be mapped
  };
  struct connection {
    ucx_reader* owner = nullptr;
    std::string label; ///< host and process, for people
    ucp_ep_h endpoint = nullptr;
    ucs_status_t failure = UCS_OK;
    bool mapped_only = false; ///< only memory that can be mapped may be read
    std::map<std::pair<std::string, std::uint64_t>, remote_key> keys; // by key and address
  };
  struct pending {
    ucx_reader* owner = nullptr;
    connection* peer = nullptr;
    std::uint64_t tag = 0;
    void* request = nullptr;
  };
  struct mapped_read {
    std::uint64_t tag = 0;
    const std::byte* from = nullptr;
    std::span<std::byte> to;
  };

  void start(std::uint64_t tag, const read_request& request);
  void stop();
  connection& connect(const remote_region& region);
  remote_key& key_of(connection& peer, const remote_region& region);
  void disconnect(connection& peer);
  void fail(std::uint64_t tag, const connection& peer, ucs_status_t status);
  void drop_failed();

  static void on_peer_error(void* arg, ucp_ep_h endpoint, ucs_status_t status);
  static void on_read_done(void* request, ucs_status_t status, void* user_data);

  std::mutex mutex_; // held by whoever calls the worker
  std::shared_ptr<ucx_context> context_;
  std::shared_ptr<ucx_caretaker> caretaker_;
  std::unique_ptr<ucx_worker> worker_;
  std::map<std::string, std::unique_ptr<connection>> peers_; // by remote_region::peer
  std::map<std::uint64_t, std::unique_ptr<pending>> pending_; // by tag
  std::deque<mapped_read> mapped_;
  std::vector<completion> done_;
};

/// remote_region::peer of this process for a worker's address: a label for people before it.
std::string ucx_peer(const std::string& worker_address);

} // namespace millrace::weightsync
