// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "draftsmith/eval/speculative_decode.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/model/drafter.h"

#include "tests/support/golden.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::testing {

/// A prompt of fixtures/decode; the answers hold 40 new tokens.
struct DecodeCase {
  std::vector<int64_t> prompt, answer, greedy, acceptance_lengths;
};

inline std::vector<DecodeCase> read_decode_cases() {
  std::vector<DecodeCase> cases;
  for (const auto& item : formats::read_json_file(fixture("decode/expected.json"))) {
    DecodeCase one;
    one.prompt = item.at("prompt").get<std::vector<int64_t>>();
    const auto cut = [&](const char* key) {
      const auto ids = item.at(key).get<std::vector<int64_t>>();
      return std::vector<int64_t>(ids.begin() + static_cast<int64_t>(one.prompt.size()), ids.end());
    };
    one.answer = cut("output");
    one.greedy = cut("greedy");
    one.acceptance_lengths = item.at("acceptance_lengths").get<std::vector<int64_t>>();
    cases.push_back(one);
  }
  return cases;
}

inline const model::Target& decode_target() {
  static const auto target = load_target("decode/target");
  return target;
}

inline const model::Drafter& decode_drafter() {
  static const auto drafter = model::Drafter::load(fixture("decode/drafter"), torch::kFloat);
  return drafter;
}

/// One prompt, decoded with the drafts of a drafter.
inline eval::SpeculativeAnswer decode_one(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<int64_t>& prompt,
    const eval::DecodeLimits& limits,
    const eval::DraftOptions& drafts = {},
    bool runs_raw_rounds = false) {
  eval::DrafterSource source(target, drafter, drafts);
  return eval::decode_speculatively(
             target, source, {prompt}, limits,
             {.picker = drafts.picker, .runs_raw_rounds = runs_raw_rounds})
      .answers.front();
}

inline eval::SpeculativeAnswer decode_chain(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<int64_t>& prompt,
    const eval::DecodeLimits& limits,
    bool runs_raw_rounds = false) {
  return decode_one(target, drafter, prompt, limits, {}, runs_raw_rounds);
}

inline eval::SpeculativeAnswer decode_tree(
    const model::Target& target,
    const model::Drafter& drafter,
    const std::vector<int64_t>& prompt,
    const eval::DecodeLimits& limits,
    int64_t budget) {
  return decode_one(
      target, drafter, prompt, limits, {.shape = eval::DraftShape::kTree, .tree_budget = budget});
}

inline std::vector<int64_t> plain_answer(
    const model::Target& target,
    const std::vector<int64_t>& prompt,
    const eval::DecodeLimits& limits) {
  return eval::decode_plainly(target, {prompt}, limits).front();
}

inline std::vector<int64_t> round_lengths(const eval::SpeculativeAnswer& answer) {
  std::vector<int64_t> lengths;
  for (const auto& round : answer.rounds)
    lengths.push_back(static_cast<int64_t>(round.size()));
  return lengths;
}

}  // namespace draftsmith::testing
