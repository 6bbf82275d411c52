#include "weightsync/ucx_reader.hpp"

#include "runtime/error.hpp"
#include "weightsync/socket_protocol.hpp"
#include "weightsync/stopwatch.hpp"
#include "weightsync/ucx_caretaker.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::weightsync {

namespace {

// A forced close ends at once where the peer lives or is known to be dead; a stopped one may leave
// its end of the connection open, which then isn't waited for.
constexpr double close_timeout_s = 1;

// Maps all pages at once rather than by a fault on each: several times faster. Only a hint.
void map_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_POPULATE_READ
  auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  auto end = reinterpret_cast<std::uintptr_t>(memory) + bytes;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_READ);
#endif
}

} // namespace

std::string ucx_peer(const std::string& worker_address) {
  return process_label() + '\n' + worker_address;
}

ucx_reader::ucx_reader(std::shared_ptr<ucx_context> context,
                       std::shared_ptr<ucx_caretaker> caretaker)
  : context_(std::move(context)), caretaker_(std::move(caretaker)),
    worker_(std::make_unique<ucx_worker>(context_)) {
  if (caretaker_)
    caretaker_->add(this);
}

ucx_reader::~ucx_reader() {
  if (caretaker_)
    caretaker_->remove(this);
  stop();
}

void ucx_reader::look_after() {
  constexpr int most = 10'000;        // a second brings no more
  constexpr double settled_s = 0.005; // UCX's own thread has a part in it
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (int i = 0; lock && i < most && (worker_->progress() || worker_->wait(settled_s)); ++i)
    ;
}

void ucx_reader::on_peer_error(void* arg, ucp_ep_h, ucs_status_t status) {
  static_cast<connection*>(arg)->failure = status;
}

void ucx_reader::on_read_done(void* request, ucs_status_t status, void* user_data) {
  auto* p = static_cast<pending*>(user_data);
  auto* owner = p->owner;
  ucp_request_free(request);
  if (status == UCS_OK)
    owner->done_.push_back({p->tag, {}, false});
  else
    owner->fail(p->tag, *p->peer, status);
  owner->pending_.erase(p->tag);
}

void ucx_reader::fail(std::uint64_t tag, const connection& peer, ucs_status_t status) {
  done_.push_back({tag, peer.label + ": " + ucs_status_string(status), true});
}

auto ucx_reader::connect(const remote_region& region) -> connection& {
  auto& slot = peers_[region.peer];
  if (slot)
    return *slot;
  auto fresh = std::make_unique<connection>();
  fresh->owner = this;
  auto cut = region.peer.find('\n');
  if (region.transport != "ucx" || cut == std::string::npos)
    throw user_error("weight_sync: the publisher uses the transport \"" + region.transport
                     + "\", but this receiver \"ucx\"");
  fresh->label = region.peer.substr(0, cut);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                      | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(region.peer.data() + cut + 1);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&ucx_reader::on_peer_error, fresh.get()};
  auto status = ucp_ep_create(worker_->handle(), &params, &fresh->endpoint);
  // Shared memory alone can't tell when a peer dies; memory that is mapped outlives its owner.
  if (status == UCS_ERR_UNREACHABLE) {
    fresh->mapped_only = true;
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    status = ucp_ep_create(worker_->handle(), &params, &fresh->endpoint);
  }
  if (status != UCS_OK) {
    fresh->endpoint = nullptr;
    fresh->failure = status;
  }
  slot = std::move(fresh);
  return *slot;
}

auto ucx_reader::key_of(connection& peer, const remote_region& region) -> remote_key& {
  auto [it, fresh] = peer.keys.try_emplace({region.key, region.address});
  auto& key = it->second;
  if (!fresh)
    return key;
  auto status = ucp_ep_rkey_unpack(peer.endpoint, region.key.data(), &key.handle);
  if (status != UCS_OK) {
    peer.failure = status;
    return key;
  }
  void* mapped = nullptr;
  if (region.memory == memory_kind::host
      && ucp_rkey_ptr(key.handle, region.address, &mapped) == UCS_OK) {
    key.mapped = static_cast<const std::byte*>(mapped);
    map_pages(mapped, region.bytes);
  } else if (peer.mapped_only) {
    peer.failure = UCS_ERR_UNREACHABLE;
  }
  return key;
}

bool ucx_reader::reaches(const remote_region& region) {
  std::lock_guard lock(mutex_);
  drop_failed();
  auto& peer = connect(region);
  if (peer.failure == UCS_OK)
    key_of(peer, region);
  return peer.failure == UCS_OK;
}

void ucx_reader::post(std::uint64_t tag, const read_request& r) {
  std::lock_guard lock(mutex_);
  start(tag, r);
}

void ucx_reader::start(std::uint64_t tag, const read_request& r) {
  drop_failed();
  auto& peer = connect(*r.from);
  if (peer.failure == UCS_OK)
    key_of(peer, *r.from);
  if (peer.failure != UCS_OK) {
    fail(tag, peer, peer.failure);
    return;
  }
  auto& key = key_of(peer, *r.from);
  if (key.mapped != nullptr && r.memory == memory_kind::host) {
    mapped_.push_back({tag, key.mapped + r.offset, r.to});
    return;
  }
  auto p = std::make_unique<pending>(pending{this, &peer, tag, nullptr});
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
                        | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = &ucx_reader::on_read_done;
  params.user_data = p.get();
  params.memory_type = ucx_memory_type(r.memory);
  auto* request = ucp_get_nbx(peer.endpoint, r.to.data(), r.to.size(), r.from->address + r.offset,
                              key.handle, &params);
  if (request == nullptr)
    done_.push_back({tag, {}, false});
  else if (UCS_PTR_IS_ERR(request))
    fail(tag, peer, UCS_PTR_STATUS(request));
  else {
    p->request = request;
    pending_[tag] = std::move(p);
  }
}

std::vector<completion> ucx_reader::poll(double wait_s) {
  std::lock_guard lock(mutex_);
  if (!mapped_.empty()) {
    // One at a time, so that its bytes are still in the cache when they are verified.
    auto m = mapped_.front();
    mapped_.pop_front();
    std::memcpy(m.to.data(), m.from, m.to.size());
    done_.push_back({m.tag, {}, false});
  }
  stopwatch waited;
  while (done_.empty()) {
    if (worker_->progress())
      continue;
    auto left = wait_s - waited.seconds();
    if (left <= 0)
      break;
    worker_->wait(left);
  }
  return std::exchange(done_, {});
}

void ucx_reader::disconnect(connection& peer) {
  for (auto& [id, key] : peer.keys)
    if (key.handle != nullptr)
      ucp_rkey_destroy(key.handle);
  peer.keys.clear();
  if (peer.endpoint == nullptr)
    return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = peer.mapped_only ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  auto* request = ucp_ep_close_nbx(peer.endpoint, &params);
  peer.endpoint = nullptr;
  if (request == nullptr || UCS_PTR_IS_ERR(request))
    return;
  stopwatch waited;
  while (ucp_request_check_status(request) == UCS_INPROGRESS
         && waited.seconds() < close_timeout_s)
    if (!worker_->progress())
      worker_->wait(0.01);
  ucp_request_free(request);
}

// A peer that failed gets a new connection with the next read: it may have been restarted at the
// same address. Its other reads have to end first, by UCX's own account of the failure.
void ucx_reader::drop_failed() {
  for (auto it = peers_.begin(); it != peers_.end();) {
    auto& peer = *it->second;
    bool busy = std::any_of(pending_.begin(), pending_.end(),
                            [&](const auto& p) { return p.second->peer == &peer; });
    if (peer.failure == UCS_OK || busy) {
      ++it;
      continue;
    }
    disconnect(peer);
    it = peers_.erase(it);
  }
}

void ucx_reader::cancel() {
  std::lock_guard lock(mutex_);
  stop();
}

void ucx_reader::stop() {
  mapped_.clear();
  if (pending_.empty()) {
    done_.clear();
    return;
  }
  // A get can't be called back: closing the connection ends it.
  for (auto& [address, peer] : peers_)
    if (std::any_of(pending_.begin(), pending_.end(),
                    [&](const auto& p) { return p.second->peer == peer.get(); }))
      peer->failure = UCS_ERR_CANCELED;
  for (auto it = peers_.begin(); it != peers_.end();)
    if (it->second->failure == UCS_OK) {
      ++it;
    } else {
      disconnect(*it->second);
      // The callbacks of its reads still name it.
      stopwatch waited;
      auto* peer = it->second.get();
      while (std::any_of(pending_.begin(), pending_.end(),
                         [&](const auto& p) { return p.second->peer == peer; })
             && waited.seconds() < close_timeout_s)
        if (!worker_->progress())
          worker_->wait(0.01);
      it = peers_.erase(it);
    }
  ensure(pending_.empty(), "UCX keeps reads of a closed connection");
  done_.clear();
}

} // namespace millrace::weightsync
