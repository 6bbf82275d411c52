#include "bench/benchmarks.hpp"

namespace millrace::bench {

const std::vector<benchmark>& benchmarks() {
  static const std::vector<benchmark> all = {
    {"stream", "rollouts through controller, reward and replay; asynchronous against synchronous",
     &stream},
    {"loss", "log-probs in chunks against whole logits; what off-policy corrections are worth", &loss},
    {"generate", "decoding in each precision, shared prefixes, chunked prompts, changing weights",
     &generate},
    {"introspection", "what watching a run costs, and how long an answer takes", &introspection},
    {"old_logits", "exact old log-probs: what each strategy costs, and what they are worth",
     &old_logits},
    {"trainer", "dynamic against fixed micro-batches; several ranks; memory as predicted", &train},
    {"weightsync", "weights from a trainer process to generator processes", &weightsync},
  };
  return all;
}

} // namespace millrace::bench
