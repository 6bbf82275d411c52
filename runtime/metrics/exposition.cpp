#include "runtime/metrics/exposition.hpp"

#include "runtime/metrics/catalogue.hpp"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cmath>
#include <map>

namespace millrace {
namespace {

std::string number(double x) {
  if (std::isnan(x))
    return "NaN";
  if (std::isinf(x))
    return x > 0 ? "+Inf" : "-Inf";
  char buffer[32];
  const bool whole = x == std::trunc(x) && std::abs(x) < 9e15;
  const auto end = whole ? std::to_chars(buffer, buffer + sizeof buffer, std::int64_t(x)).ptr
                         : std::to_chars(buffer, buffer + sizeof buffer, x).ptr;
  return {buffer, end};
}

std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || (quotes && c == '"'))
      out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string label(std::string_view name, std::string_view value) {
  return std::string(name) + "=\"" + escaped(value, true) + "\"";
}

/// The samples of each metric in one block, as the format demands, whichever actor they are of.
class text_writer {
public:
  void add(const actor_snapshot& actor) {
    const auto whose = label("actor", actor.name) + "," + label("node", actor.node);
    for (const auto& v : actor.counters)
      line("counter", v.name, v.name, own(v.name, v.label) + whose, number(v.value));
    for (const auto& v : actor.gauges)
      line("gauge", v.name, v.name, own(v.name, v.label) + whose, number(v.value));
    for (const auto& h : actor.histograms)
      add(h, own(h.name, h.label) + whose);
    const auto kinds = whose + "," + label("kind", actor.kind);
    const auto general = [&](const gauge& m, double value) {
      line("gauge", m.info().name, m.info().name, kinds, number(value));
    };
    general(metrics::mailbox_depth, double(actor.mailbox));
    general(metrics::state_age, actor.since);
    general(metrics::silence, actor.silent);
    general(metrics::waiting, actor.waits_for.empty() ? 0 : 1);
  }

  std::string text() const {
    std::string out;
    for (const auto& name : order_)
      out += blocks_.at(name);
    return out;
  }

private:
  void add(const histogram_value& h, const std::string& labels) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < h.counts.size(); ++i) {
      sum += h.counts[i];
      const auto le = i < h.bounds.size() ? number(h.bounds[i]) : std::string("+Inf");
      line("histogram", h.name, h.name + "_bucket", labels + "," + label("le", le),
           std::to_string(sum));
    }
    line("histogram", h.name, h.name + "_sum", labels, number(h.sum));
    line("histogram", h.name, h.name + "_count", labels, std::to_string(sum));
  }

  static std::string own(const std::string& name, const std::string& value) {
    if (value.empty())
      return {};
    const auto* info = find_metric(name);
    return label(info && !info->label.empty() ? info->label : "label", value) + ",";
  }

  void line(std::string_view type, const std::string& metric, const std::string& sample,
            const std::string& labels, const std::string& value) {
    auto [at, fresh] = blocks_.try_emplace(metric);
    if (fresh) {
      order_.push_back(metric);
      const auto* info = find_metric(metric);
      at->second = "# HELP " + metric + " "
                   + escaped(info ? info->help : "Declared by a plugin of another node", false)
                   + "\n# TYPE " + metric + " " + std::string(type) + "\n";
    }
    at->second += sample + "{" + labels + "} " + value + "\n";
  }

  std::map<std::string, std::string> blocks_;
  std::vector<std::string> order_;
};

void put(nlohmann::ordered_json& into, const std::string& name, const std::string& label,
         nlohmann::ordered_json value) {
  if (label.empty())
    into[name] = std::move(value);
  else
    into[name][label] = std::move(value);
}

} // namespace

std::string prometheus_text(std::span<const actor_snapshot> actors) {
  text_writer out;
  for (const auto& actor : actors)
    out.add(actor);
  return out.text();
}

nlohmann::ordered_json to_json(const actor_snapshot& actor) {
  nlohmann::ordered_json out{
    {"kind", actor.kind},   {"name", actor.name},           {"node", actor.node},
    {"state", actor.state}, {"waits_for", actor.waits_for}, {"reason", actor.reason},
    {"since", actor.since}, {"silent", actor.silent},       {"mailbox", actor.mailbox}};
  auto& counters = out["counters"] = nlohmann::ordered_json::object();
  for (const auto& v : actor.counters)
    put(counters, v.name, v.label, v.value);
  auto& gauges = out["gauges"] = nlohmann::ordered_json::object();
  for (const auto& v : actor.gauges)
    put(gauges, v.name, v.label, v.value);
  auto& histograms = out["histograms"] = nlohmann::ordered_json::object();
  for (const auto& h : actor.histograms)
    put(histograms, h.name, h.label,
        {{"bounds", h.bounds}, {"counts", h.counts}, {"sum", h.sum}, {"count", h.count()}});
  return out;
}

actor_snapshot snapshot_from_json(const nlohmann::json& written) {
  actor_snapshot out;
  if (!written.is_object())
    return out;
  const auto text = [&](const char* key, std::string& into) {
    if (const auto at = written.find(key); at != written.end() && at->is_string())
      into = at->get<std::string>();
  };
  const auto number_of = [](const nlohmann::json& x) { return x.is_number() ? x.get<double>() : std::nan(""); };
  text("kind", out.kind);
  text("name", out.name);
  text("node", out.node);
  text("state", out.state);
  text("waits_for", out.waits_for);
  text("reason", out.reason);
  const auto plain = [&](const char* key) {
    const auto at = written.find(key);
    return at != written.end() && at->is_number() ? at->get<double>() : 0.0;
  };
  out.since = plain("since");
  out.silent = plain("silent");
  out.mailbox = static_cast<std::int64_t>(plain("mailbox"));
  const auto none = nlohmann::json::object();
  const auto object_at = [&](const char* key) -> const nlohmann::json& {
    const auto at = written.find(key);
    return at != written.end() && at->is_object() ? *at : none;
  };
  const auto values = [&](const char* key, std::vector<metric_value>& into) {
    for (const auto& [name, v] : object_at(key).items()) {
      if (!v.is_object())
        into.push_back({name, {}, number_of(v)});
      else
        for (const auto& [label, x] : v.items())
          into.push_back({name, label, number_of(x)});
    }
  };
  values("counters", out.counters);
  values("gauges", out.gauges);
  const auto histogram = [&](const std::string& name, const std::string& label,
                             const nlohmann::json& h) {
    histogram_value read{name, label, h.value("bounds", std::vector<double>{}),
                         h.value("counts", std::vector<std::uint64_t>{}), h.value("sum", 0.0)};
    if (read.counts.size() == read.bounds.size() + 1)
      out.histograms.push_back(std::move(read));
  };
  for (const auto& [name, h] : object_at("histograms").items()) {
    if (h.is_object() && h.contains("bounds"))
      histogram(name, {}, h);
    else if (h.is_object())
      for (const auto& [label, x] : h.items())
        histogram(name, label, x);
  }
  return out;
}

std::string catalogue_table() {
  std::string out, owner;
  for (const auto* m : catalogue()) {
    if (m->owner != owner) {
      owner = m->owner;
      out += (out.empty() ? "" : "\n") + owner + "\n";
    }
    static constexpr std::string_view kinds[] = {"counter", "gauge", "histogram"};
    out += "  " + m->name;
    if (!m->label.empty())
      out += "{" + m->label + "}";
    out += "  " + std::string(kinds[std::size_t(m->kind)]) + ", " + m->unit + "\n      " + m->help
           + "\n";
  }
  return out;
}

} // namespace millrace
