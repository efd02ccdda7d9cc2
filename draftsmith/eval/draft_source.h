// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "draftsmith/eval/draft_tree.h"
#include "draftsmith/eval/token_picker.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"

namespace draftsmith::eval {

/// Seconds spent in the parts of speculative decoding.
struct DecodeTimes {
  double prefill = 0;
  double draft = 0;   // drafter and head
  double tree = 0;    // choosing the drafts from its logits
  double verify = 0;  // target
  double commit = 0;  // acceptance, caches

  DecodeTimes& operator+=(const DecodeTimes& other);
  double total() const { return prefill + draft + tree + verify + commit; }
};

/// Where a row of the batch stands.
struct Anchor {
  int64_t token = 0;     // the newest committed token
  int64_t response = 0;  // which answer, for draws
  int64_t place = 0;     // of the token in the answer
};

struct Proposal {
  DraftTree tree;
  /// Of drafts that were drawn: the distribution of each, [depth][V]. Else empty.
  std::vector<std::vector<double>> distributions = {};
};

/// What proposes drafts for the rows of a batch.
class DraftSource {
 public:
  virtual ~DraftSource() = default;

  /// Layers of the target whose states it wants to see.
  virtual const std::vector<int64_t>& layer_ids() const = 0;
  /// The deepest and the largest tree that it may propose, in nodes without the root.
  virtual int64_t max_depth() const = 0;
  virtual int64_t max_nodes() const = 0;

  /// A new batch. Rows will have up to `capacity` tokens.
  virtual void start(int64_t num_rows, int64_t capacity) = 0;

  /// Trees after the anchors, given the target's states of the tokens committed since the last
  /// call: the first num_new[b] of row b. Adds to `times`.
  virtual std::vector<Proposal> propose(
      const torch::Tensor& features,  // [B, T, F]
      const std::vector<int64_t>& num_new,
      const std::vector<Anchor>& anchors,
      DecodeTimes& times) = 0;

  /// Keeps only the rows of `index`, in that order.
  virtual void select_rows(const std::vector<int64_t>& index) = 0;
};

enum class DraftShape { kChain, kTree };

struct DraftOptions {
  DraftShape shape = DraftShape::kChain;
  int64_t tree_budget = 32;     // nodes without the root
  bool samples_drafts = false;  // chain only: drafts are drawn at the picker's temperature
  TokenPicker picker = {};
};

/// Drafts of a DFlash drafter. Its head is the target's in the drafter's dtype: what is drafted
/// need not be exact, and half the bytes are read in half the time.
class DrafterSource : public DraftSource {
 public:
  DrafterSource(const model::Target& target, const model::Drafter& drafter, DraftOptions options);

  const std::vector<int64_t>& layer_ids() const override {
    return drafter_.config().target_layer_ids;
  }
  int64_t max_depth() const override { return drafter_.config().block_size - 1; }
  int64_t max_nodes() const override;
  void start(int64_t num_rows, int64_t capacity) override;
  std::vector<Proposal> propose(
      const torch::Tensor& features,
      const std::vector<int64_t>& num_new,
      const std::vector<Anchor>& anchors,
      DecodeTimes& times) override;
  void select_rows(const std::vector<int64_t>& index) override { cache_->select_rows(index); }

 private:
  torch::Tensor draft_logits(const std::vector<Anchor>& anchors);                // [B, K-1, V]
  Proposal draw_chain(const torch::Tensor& logits, const Anchor& anchor) const;  // [K-1, V]

  const model::Target& target_;
  const model::Drafter& drafter_;
  DraftOptions options_;
  torch::Tensor lm_head_;  // [V, D]
  std::optional<model::KvCache> cache_;
};

}  // namespace draftsmith::eval
