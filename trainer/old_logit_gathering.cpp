#include "trainer/old_logit_gathering.hpp"

#include "trainer/collectives.hpp"
#include "trainer/old_logit_scoring.hpp"

#include <string>
#include <utility>

namespace millrace::trainer {

old_logit_gathering::old_logit_gathering(const batch_scorer& scorer, const rank_share& share)
    : sequences_(scorer.sequences()) {
  auto tokens = static_cast<std::size_t>(scorer.layout().tokens());
  logp_.assign(tokens, unknown_logp);
  routes_.assign(tokens, old_logit_route::recompute);
  known_.assign(tokens, false);
  std::int32_t next = 0;
  for (const auto& s : sequences_) {
    auto& places = places_.emplace_back(s.tokens.size(), -1);
    for (std::size_t t = 0; t < s.tokens.size(); ++t)
      if (s.versions[t] >= 0) {
        known_[static_cast<std::size_t>(next)] = !share.has(s.id);
        places[t] = next++;
      }
  }
  others_ = known_;
}

std::map<version, std::int64_t, std::greater<>> old_logit_gathering::missing_versions() const {
  std::map<version, std::int64_t, std::greater<>> out;
  for (std::size_t s = 0; s < sequences_.size(); ++s)
    for (std::size_t t = 0; t < sequences_[s].tokens.size(); ++t)
      if (missing(s, t))
        ++out[{sequences_[s].versions[t]}];
  return out;
}

void old_logit_gathering::set(std::size_t s, std::size_t t, float logp, old_logit_route route) {
  auto i = static_cast<std::size_t>(places_[s][t]);
  logp_[i] = logp;
  routes_[i] = route;
  known_[i] = true;
}

void old_logit_gathering::exchange(collectives& data) {
  std::vector<std::int32_t> routes(routes_.size());
  for (std::size_t i = 0; i < others_.size(); ++i) {
    logp_[i] = others_[i] ? 0 : logp_[i];
    routes[i] = others_[i] ? 0 : static_cast<std::int32_t>(routes_[i]);
  }
  auto logp = tensor_of(logp_), route = tensor_of(routes);
  data.all_reduce(logp);
  data.all_reduce(route);
  for (std::size_t i = 0; i < others_.size(); ++i) {
    logp_[i] = logp.const_data_ptr<float>()[i];
    routes_[i] = static_cast<old_logit_route>(route.const_data_ptr<std::int32_t>()[i]);
  }
}

void old_logit_gathering::write(old_log_probs& out) && {
  for (auto r : routes_)
    ++out.served[std::string(names(r)[static_cast<std::size_t>(r)])];
  out.logp = tensor_of(logp_);
  out.routes = std::move(routes_);
}

} // namespace millrace::trainer
