#include "runtime/model/chat_template.hpp"

#include "runtime/error.hpp"
#include "runtime/model/jinja_functions.hpp"

#include <cstdlib>
#include <map>

namespace millrace::model {
namespace {

using namespace jinja;
using kind = expression::kind;

/// Walks a template. What an endless template could do is bounded.
class interpreter {
public:
  interpreter(const std::string& where, std::map<std::string, value> variables)
    : where_(where), scopes_{std::move(variables)} {}

  std::string run(const block& all) {
    execute(all);
    return std::move(out_);
  }

private:
  enum class flow { on, leave, proceed };

  [[noreturn]] void fail(int line, const std::string& what) const {
    throw user_error(where_ + ", line " + std::to_string(line) + ": " + what);
  }

  void print(const std::string& text, int line) {
    if (out_.size() + text.size() > (std::size_t{64} << 20))
      fail(line, "the template has written more than 64 MB");
    out_ += text;
  }

  flow execute(const block& all) {
    for (const auto& s : all)
      if (const auto f = execute(s); f != flow::on)
        return f;
    return flow::on;
  }

  flow execute(const statement& s) {
    using is = statement::kind;
    switch (s.is) {
      case is::text: print(s.name, s.line); break;
      case is::print: print(guarded(s.line, [&] { return evaluate(*s.value).printed(); }), s.line);
        break;
      case is::branch: return execute(evaluate(*s.value).truth() ? s.body : s.otherwise);
      case is::loop: loop(s); break;
      case is::assign: assign(s); break;
      case is::capture: {
        auto before = std::exchange(out_, {});
        const auto f = execute(s.body);
        scopes_.back()[s.targets[0]] = std::exchange(out_, std::move(before));
        return f;
      }
      case is::leave: return flow::leave;
      case is::proceed: return flow::proceed;
    }
    return flow::on;
  }

  void bind(const std::vector<std::string>& targets, const value& v, int line) {
    if (targets.size() == 1) {
      scopes_.back()[targets[0]] = v;
      return;
    }
    const auto parts = guarded(line, [&] { return elements_of(v); });
    if (parts.size() != targets.size())
      fail(line, std::to_string(parts.size()) + " values for " + std::to_string(targets.size())
                   + " names");
    for (std::size_t i = 0; i < parts.size(); ++i)
      scopes_.back()[targets[i]] = parts[i];
  }

  void assign(const statement& s) {
    auto v = evaluate(*s.value);
    if (s.name.empty())
      return bind(s.targets, v, s.line);
    const auto target = look_up(s.targets[0]);
    const auto* held = std::get_if<std::shared_ptr<space>>(&target.is);
    if (!held)
      fail(s.line, "only a namespace's members can be set, and " + s.targets[0] + " is "
                     + target.type_name());
    (*held)->members[s.name] = std::move(v);
  }

  void loop(const statement& s) {
    auto all = guarded(s.line, [&] { return elements_of(evaluate(*s.value)); });
    scopes_.emplace_back();
    if (s.condition) {
      list kept;
      for (auto& x : all) {
        bind(s.targets, x, s.line);
        if (evaluate(*s.condition).truth())
          kept.push_back(std::move(x));
      }
      all = std::move(kept);
    }
    const auto n = static_cast<std::int64_t>(all.size());
    for (std::int64_t i = 0; i < n; ++i) {
      if (++rounds_ > 1'000'000)
        fail(s.line, "the template has gone through more than a million rounds");
      const auto at = [&](std::int64_t k) {
        return k < 0 || k >= n ? value(undefined{"loop"}) : all[static_cast<std::size_t>(k)];
      };
      scopes_.back().clear();
      scopes_.back()["loop"] = mapping{
        {"index", i + 1}, {"index0", i}, {"first", i == 0}, {"last", i + 1 == n}, {"length", n},
        {"revindex", n - i}, {"revindex0", n - i - 1}, {"previtem", at(i - 1)},
        {"nextitem", at(i + 1)}};
      bind(s.targets, at(i), s.line);
      if (execute(s.body) == flow::leave)
        break;
    }
    scopes_.pop_back();
    if (n == 0)
      execute(s.otherwise);
  }

  [[nodiscard]] value look_up(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end())
        return found->second;
    return global(name);
  }

  /// Adds the line to what functions complain of.
  template <class F>
  auto guarded(int line, F&& f) const -> decltype(f()) {
    try {
      return f();
    } catch (const user_error& e) {
      const std::string what = e.what();
      if (what.starts_with(where_))
        throw;
      fail(line, what);
    }
  }

  value evaluate(const expression& e) {
    return guarded(e.line, [&] { return evaluated(e); });
  }
  value part(const expression& e, std::size_t i) {
    return i < e.parts.size() && e.parts[i] ? evaluate(*e.parts[i]) : value(undefined{});
  }
  arguments arguments_of(const expression& e) {
    arguments all;
    for (std::size_t i = 1; i < e.parts.size(); ++i)
      all.positional.push_back(part(e, i));
    for (const auto& [name, x] : e.named)
      all.named.emplace_back(name, evaluate(*x));
    return all;
  }

  value evaluated(const expression& e) {
    switch (e.is) {
      case kind::literal: return e.constant;
      case kind::name: return look_up(e.name);
      case kind::list_of: {
        list all;
        for (std::size_t i = 0; i < e.parts.size(); ++i)
          all.push_back(part(e, i));
        return all;
      }
      case kind::mapping_of: return mapping_of(e);
      case kind::attribute: return attribute(part(e, 0), e.name);
      case kind::item: return item_of(part(e, 0), part(e, 1));
      case kind::slice: return slice_of(part(e, 0), part(e, 1), part(e, 2), part(e, 3));
      case kind::call: return call(e);
      case kind::filter: return apply_filter(e.name, part(e, 0), arguments_of(e));
      case kind::test: return apply_test(e.name, part(e, 0), arguments_of(e).positional);
      case kind::unary: return unary(e);
      case kind::binary: return binary(e);
      case kind::choice: return part(e, part(e, 1).truth() ? 0 : 2);
    }
    return undefined{};
  }

  value mapping_of(const expression& e) {
    mapping all;
    for (std::size_t i = 0; i + 1 < e.parts.size(); i += 2) {
      const auto key = part(e, i);
      if (!key.text())
        fail(e.line, std::string("keys are strings here, not ") + key.type_name());
      all.emplace_back(*key.text(), part(e, i + 1));
    }
    return all;
  }

  static value attribute(const value& subject, const std::string& name) {
    if (auto method = method_of(subject, name); !method.is_undefined())
      return method;
    return item_of(subject, name);
  }

  value call(const expression& e) {
    const auto callee = part(e, 0);
    const auto* f = std::get_if<std::shared_ptr<const function>>(&callee.is);
    if (!f)
      fail(e.line, callee.is_undefined()
                     ? "\"" + std::get<undefined>(callee.is).name + "\" can't be called here"
                     : std::string("a ") + callee.type_name() + " can't be called");
    return (*f)->call(arguments_of(e));
  }

  value unary(const expression& e) {
    const auto v = part(e, 0);
    if (e.name == "not")
      return !v.truth();
    return apply_operator(e.name, std::int64_t{0}, v);
  }

  value binary(const expression& e) {
    auto a = part(e, 0);
    if (e.name == "and" || e.name == "or")
      return a.truth() == (e.name == "or") ? a : part(e, 1);
    return apply_operator(e.name, a, part(e, 1));
  }

  const std::string& where_;
  std::vector<std::map<std::string, value>> scopes_;
  std::string out_;
  std::int64_t rounds_ = 0;
};

} // namespace

chat_template::chat_template(const chat_source& source) : source_(source) {
  if (source.text.empty())
    throw user_error("the model has no chat template (chat_template in tokenizer_config.json, or "
                     "chat_template.jinja)");
  if (source_.where.empty())
    source_.where = "chat template";
  body_ = std::make_shared<const jinja::block>(jinja::parse(source_.text, source_.where));
}

std::string chat_template::render(const nlohmann::ordered_json& messages,
                                  bool add_generation_prompt,
                                  const nlohmann::ordered_json& extra) const {
  std::map<std::string, value> variables;
  for (const auto& [name, token] :
       {std::pair("bos_token", &source_.bos), std::pair("eos_token", &source_.eos),
        std::pair("pad_token", &source_.pad), std::pair("unk_token", &source_.unk)})
    if (!token->empty())
      variables[name] = *token;
  variables["messages"] = value::from(messages);
  variables["add_generation_prompt"] = add_generation_prompt;
  variables["tools"] = none{};
  variables["documents"] = none{};
  for (const auto& [name, x] : extra.items())
    variables[name] = value::from(x);
  return interpreter(source_.where, std::move(variables)).run(*body_);
}

namespace {

/// Stands for the special text `i` in messages while the template works on them. Private use.
std::string marker(std::size_t i) {
  return "\xEE\xBF\xBE" + std::to_string(i) + "\xEE\xBF\xBF";
}

void mark(nlohmann::ordered_json& at, const std::vector<std::string>& specials) {
  if (at.is_structured()) {
    for (auto& inner : at)
      mark(inner, specials);
  } else if (at.is_string()) {
    auto& text = at.get_ref<std::string&>();
    for (std::size_t i = 0; i < specials.size(); ++i)
      for (auto found = text.find(specials[i]); found != text.npos; found = text.find(specials[i]))
        text.replace(found, specials[i].size(), marker(i));
  }
}

} // namespace

std::vector<std::int32_t> encode_chat(const tokenizer& tokens, const chat_template& chat,
                                      nlohmann::ordered_json messages, bool add_generation_prompt,
                                      const nlohmann::ordered_json& extra) {
  const auto specials = tokens.special_texts();
  mark(messages, specials);
  const auto text = chat.render(messages, add_generation_prompt, extra);
  std::vector<std::int32_t> ids;
  const auto add = [&](const std::vector<std::int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  std::size_t at = 0;
  for (auto found = text.find("\xEE\xBF\xBE"); found != text.npos;
       found = text.find("\xEE\xBF\xBE", found)) {
    const auto i = static_cast<std::size_t>(std::strtoul(text.c_str() + found + 3, nullptr, 10));
    if (i >= specials.size() || text.compare(found, marker(i).size(), marker(i)) != 0) {
      found += 3;
      continue;
    }
    add(tokens.encode_markup(text.substr(at, found - at)));
    add(tokens.encode(specials[i]));
    found = at = found + marker(i).size();
  }
  add(tokens.encode_markup(text.substr(at)));
  return ids;
}

} // namespace millrace::model
