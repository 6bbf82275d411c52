#include "weightsync/ucx_context.hpp"

#include "runtime/error.hpp"

#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <csignal>
#include <cstdlib>
#include <initializer_list>

namespace millrace::weightsync {

namespace {

void modify(ucp_config_t* config, const char* name, const std::string& value) {
  if (!value.empty())
    ucx_check(ucp_config_modify(config, name, value.c_str()),
              std::string("weight_sync: UCX refuses ") + name + "=" + value);
}

// An option that is set in the environment is the user's choice.
std::string unless_set(const char* variable, const std::string& value) {
  return std::getenv(variable) == nullptr ? value : "";
}

} // namespace

void ucx_check(ucs_status_t status, const std::string& what) {
  if (status < 0)
    throw user_error(what + ": " + ucs_status_string(status));
}

ucs_memory_type_t ucx_memory_type(memory_kind kind) {
  return kind == memory_kind::cuda ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

ucx_context::ucx_context(const ucx_options& options) {
  // A lost peer is an error to us, with a message of ours; UCX's advice about sysctl misleads.
  if (std::getenv("UCX_LOG_LEVEL") == nullptr)
    ucs_global_opts_set_value("LOG_LEVEL", "fatal");
  // UCX takes over these signals when it is loaded; a crash report is not its business here.
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE})
    ucs_debug_disable_signal(s);
  ucp_config_t* config = nullptr;
  ucx_check(ucp_config_read(nullptr, nullptr, &config), "weight_sync: UCX's settings");
  try {
    modify(config, "TLS", options.transports);
    modify(config, "NET_DEVICES", options.devices);
    if (options.tcp_segment_bytes > 0) {
      auto bytes = std::to_string(options.tcp_segment_bytes);
      modify(config, "TX_SEG_SIZE", unless_set("UCX_TCP_TX_SEG_SIZE", bytes));
      modify(config, "RX_SEG_SIZE", unless_set("UCX_TCP_RX_SEG_SIZE", bytes));
    }
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED
                        | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    params.name = "millrace";
    ucx_check(ucp_init(&params, config, &handle_), "weight_sync: UCX can't start");
  } catch (...) {
    ucp_config_release(config);
    throw;
  }
  ucp_config_release(config);
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  ucx_check(ucp_context_query(handle_, &attributes), "weight_sync: UCX's memory types");
  memory_types_ = attributes.memory_types;
}

ucx_context::~ucx_context() { ucp_cleanup(handle_); }

bool ucx_context::supports(memory_kind kind) const {
  return (memory_types_ & UCS_BIT(ucx_memory_type(kind))) != 0;
}

} // namespace millrace::weightsync
