// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/app/eval_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "draftsmith/base/log.h"

namespace draftsmith::app {
namespace {

constexpr int64_t kBarWidth = 40;

formats::Json set_as_json(const eval::SetReport& set) {
  const auto& acceptance = set.acceptance;
  return {
      {"responses", acceptance.responses},
      {"rounds", acceptance.rounds},
      {"tokens", acceptance.tokens},
      {"acceptance_length", acceptance.pooled},
      {"acceptance_length_95", {acceptance.pooled_95.low, acceptance.pooled_95.high}},
      {"mean_per_response", acceptance.mean_per_response},
      {"by_slot", acceptance.by_slot},
      {"histogram", acceptance.histogram},
      {"plain_tokens_per_s", set.plain_tokens_per_s()},
      {"speculative_tokens_per_s", set.speculative_tokens_per_s()},
      {"speedup", set.speedup()},
      {"seconds",
       {{"prefill", set.times.prefill},
        {"draft", set.times.draft},
        {"tree", set.times.tree},
        {"verify", set.times.verify},
        {"commit", set.times.commit}}}};
}

formats::Json method_as_json(const MeasuredMethod& method) {
  formats::Json json = {{"method", method.method}};
  if (method.method == "tree") json["tree_budget"] = method.tree_budget;
  json.update(set_as_json(method.report.total));
  const auto& report = method.report;
  json["is_identical"] =
      report.is_compared ? formats::Json(report.differences.empty()) : formats::Json();
  json["differences"] = formats::Json::array();
  for (const auto& item : report.differences)
    json["differences"].push_back(
        {{"prompt", item.prompt}, {"position", item.position}, {"gap", item.gap}});
  json["sets"] = formats::Json::object();
  for (const auto& [name, set] : report.by_set)
    json["sets"][name] = set_as_json(set);
  return json;
}

void print_set(const std::string& name, const eval::SetReport& set) {
  const auto& acceptance = set.acceptance;
  print_result(
      "{:<12} {:>9} {:>7} {:>7} {:>11.3f} [{:.3f}, {:.3f}] {:>12.3f} {:>10.1f} {:>11.1f} {:>7.2f}",
      name, acceptance.responses, acceptance.rounds, acceptance.tokens, acceptance.pooled,
      acceptance.pooled_95.low, acceptance.pooled_95.high, acceptance.mean_per_response,
      set.plain_tokens_per_s(), set.speculative_tokens_per_s(), set.speedup());
}

std::string show_set(const std::string& name) { return name.empty() ? "(none)" : name; }

/// Of all prompts, then of each set if there are several.
void print_slots(const eval::EvalReport& report) {
  const auto join = [](const eval::SetReport& set) {
    std::vector<std::string> slots;
    for (const double share : set.acceptance.by_slot)
      slots.push_back(fmt::format("{:.3f}", share));
    return fmt::format("{}", fmt::join(slots, " "));
  };
  print_result("accepted up to slot 1, 2, ...: {}", join(report.total));
  for (const auto& [name, set] : report.by_set)
    print_result("{:<12} {}", show_set(name), join(set));
}

/// Likewise: rounds by their tokens.
void print_histogram(const eval::EvalReport& report) {
  const auto& histogram = report.total.acceptance.histogram;
  const int64_t most = std::max<int64_t>(1, *std::max_element(histogram.begin(), histogram.end()));
  print_result("tokens per round");
  for (size_t length = 1; length < histogram.size(); ++length) {
    const int64_t count = histogram[length];
    print_result(
        "{:>4} {:>7} {}", length, count,
        std::string(static_cast<size_t>(kBarWidth * count / most), '#'));
  }
  if (!report.by_set.empty()) print_result("rounds of 1, 2, ... tokens");
  for (const auto& [name, set] : report.by_set) {
    const auto& counts = set.acceptance.histogram;
    print_result("{:<12} {}", show_set(name), fmt::join(counts.begin() + 1, counts.end(), " "));
  }
}

void print_times(const eval::DecodeTimes& times) {
  const auto share = [&](double seconds) { return 100 * seconds / std::max(times.total(), 1e-9); };
  print_result(
      "speculative time: prefill {:.1f} s, draft {:.1f} s ({:.0f} %), tree {:.1f} s ({:.0f} %), "
      "verify {:.1f} s ({:.0f} %), commit {:.1f} s ({:.0f} %)",
      times.prefill, times.draft, share(times.draft), times.tree, share(times.tree), times.verify,
      share(times.verify), times.commit, share(times.commit));
}

std::string describe_equality(const eval::EvalReport& report) {
  if (!report.is_compared) return "not compared, since drafts are drawn";
  if (report.differences.empty()) return "yes, all tokens";
  return fmt::format(
      "no, in {} of {} answers", report.differences.size(), report.total.acceptance.responses);
}

void print_differences(const eval::EvalReport& report) {
  print_result("output equal to plain decoding: {}", describe_equality(report));
  for (const auto& item : report.differences)
    print_result(
        "  prompt {}: first difference at token {}, gap of the two best logits {:.6f}", item.prompt,
        item.position, item.gap);
}

void print_method(const MeasuredMethod& method) {
  const auto& report = method.report;
  print_result("{}", method.name());
  print_result(
      "{:<12} {:>9} {:>7} {:>7} {:>11} {:<14} {:>14} {:>10} {:>11} {:>7}", "set", "responses",
      "rounds", "tokens", "acceptance", "95 %", "per response", "plain tk/s", "spec. tk/s",
      "ratio");
  for (const auto& [name, set] : report.by_set)
    print_set(show_set(name), set);
  print_set("all", report.total);
  print_slots(report);
  print_histogram(report);
  print_times(report.total.times);
  print_differences(report);
}

void print_sweep(const std::vector<MeasuredMethod>& methods) {
  print_result(
      "{:<16} {:>11} {:>12} {:>12} {:>7}", "method", "acceptance", "tokens/s", "ms a round",
      "ratio");
  for (const auto& method : methods) {
    const auto& total = method.report.total;
    print_result(
        "{:<16} {:>11.3f} {:>12.1f} {:>12.1f} {:>7.2f}", method.name(), total.acceptance.pooled,
        total.speculative_tokens_per_s(),
        1000 * (total.speculative_seconds - total.times.prefill) /
            static_cast<double>(std::max<int64_t>(1, total.acceptance.rounds)),
        total.speedup());
  }
  const auto& best = find_fastest(methods);
  print_result(
      "fastest here: --eval.method={}{}", best.method,
      best.method == "tree" ? fmt::format(" --eval.tree_budget={}", best.tree_budget) : "");
}

}  // namespace

std::string MeasuredMethod::name() const {
  return method == "tree" ? fmt::format("tree of {}", tree_budget) : method;
}

const MeasuredMethod& find_fastest(const std::vector<MeasuredMethod>& methods) {
  return *std::max_element(methods.begin(), methods.end(), [](const auto& left, const auto& right) {
    return left.report.total.speculative_tokens_per_s() <
           right.report.total.speculative_tokens_per_s();
  });
}

formats::Json report_as_json(const EvalResult& result) {
  formats::Json json = method_as_json(result.methods.front());
  if (!result.compared_drafter.empty()) {
    json["compared"] = method_as_json(result.methods.back());
    json["compared"]["drafter"] = result.compared_drafter;
    json["difference"] = result.difference.value;
    json["difference_95"] = {result.difference.interval_95.low, result.difference.interval_95.high};
  } else if (result.methods.size() > 1) {
    json["sweep"] = formats::Json::array();
    for (const auto& method : result.methods)
      json["sweep"].push_back(method_as_json(method));
    json["fastest"] = find_fastest(result.methods).name();
  }
  return json;
}

void print_report(const EvalResult& result) {
  print_method(result.methods.front());
  if (!result.compared_drafter.empty()) {
    print_result("");
    print_result("{}", result.compared_drafter);
    print_method(result.methods.back());
    print_result(
        "acceptance against the first drafter: {:+.3f} [{:+.3f}, {:+.3f}] (95 %, paired)",
        result.difference.value, result.difference.interval_95.low,
        result.difference.interval_95.high);
  } else if (result.methods.size() > 1) {
    print_result("");
    print_sweep(result.methods);
  }
}

void print_round(const eval::RoundTrace& trace, const formats::Vocabulary& text) {
  const auto& tree = trace.tree;
  const auto& path = trace.accepted.path;
  print_result(
      "prompt {}, token {}: after {}", trace.anchor.response, trace.anchor.place + 1,
      text.show(trace.anchor.token));
  for (int64_t node = 1; node <= tree.num_nodes(); ++node) {
    const auto i = static_cast<size_t>(node - 1);
    const bool is_accepted = std::find(path.begin(), path.end(), node) != path.end();
    print_result(
        "  {:>3} {}{}{}{}", node, std::string(static_cast<size_t>(2 * tree.depths[i]), ' '),
        text.show(tree.tokens[i]),
        tree.log_probs.empty() ? "" : fmt::format("  {:.3f}", std::exp(tree.log_probs[i])),
        is_accepted ? "  accepted" : "");
  }
  std::vector<std::string> accepted;
  for (size_t i = 1; i < path.size(); ++i)
    accepted.push_back(text.show(tree.tokens[static_cast<size_t>(path[i] - 1)]));
  print_result(
      "  proposed {}, accepted {}: {} then the target's own {}", tree.num_nodes(),
      trace.accepted.num_accepted(),
      accepted.empty() ? "nothing," : fmt::format("{}", fmt::join(accepted, " ")),
      text.show(trace.accepted.token));
}

}  // namespace draftsmith::app
