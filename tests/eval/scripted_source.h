// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "draftsmith/eval/draft_source.h"

namespace draftsmith::testing {

/// Drafts as a test wants them, without a drafter.
class ScriptedSource : public eval::DraftSource {
 public:
  using Script = std::function<eval::DraftTree(const eval::Anchor&)>;

  ScriptedSource(int64_t depth, int64_t nodes, Script script)
      : depth_(depth), nodes_(nodes), script_(std::move(script)) {}

  const std::vector<int64_t>& layer_ids() const override { return layer_ids_; }
  int64_t max_depth() const override { return depth_; }
  int64_t max_nodes() const override { return nodes_; }
  void start(int64_t /*num_rows*/, int64_t /*capacity*/) override {}
  std::vector<eval::Proposal> propose(
      const torch::Tensor& /*features*/,
      const std::vector<int64_t>& /*num_new*/,
      const std::vector<eval::Anchor>& anchors,
      eval::DecodeTimes& /*times*/) override {
    std::vector<eval::Proposal> proposals;
    for (const auto& anchor : anchors)
      proposals.push_back({script_(anchor)});
    return proposals;
  }
  void select_rows(const std::vector<int64_t>& /*index*/) override {}

 private:
  int64_t depth_;
  int64_t nodes_;
  Script script_;
  std::vector<int64_t> layer_ids_ = {0};
};

}  // namespace draftsmith::testing
