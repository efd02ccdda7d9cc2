// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/token_batch.h"
#include "draftsmith/ops/block_attention.h"

namespace draftsmith::data {

/// What of a drafter decides how blocks are made.
struct BlockRule {
  int64_t block_size = 0;  // K
  int64_t mask_token_id = 0;
  double decay_gamma = 0;  // weight of slot k is exp(-(k-1) / gamma); 0 = no decay

  bool operator==(const BlockRule&) const = default;
};

/// Rows that blocks are cut from; all tensors on the host.
struct BlockRows {
  torch::Tensor ids;           // [B, S] int64
  torch::Tensor mask;          // [B, S] uint8, bool or float 0/1
  torch::Tensor document_ids;  // [B, S] int64, -1 = padding; undefined = one document per row
};

struct Anchors {
  torch::Tensor positions;  // [B, N] int64, ascending in a row, padded with 0
  torch::Tensor keep;       // [B, N] bool, false for padding
};

/// The draft blocks of a batch. Slot k of the block at anchor a predicts the token at a + k from
/// the anchor's token (slot 0) and mask tokens; teacher row a + k - 1 holds the target's own
/// distribution for it.
struct DraftBlocks {
  int64_t num_rows = 0;  // sequences that the blocks come from
  ops::BlockLayout layout;
  torch::Tensor block_ids;          // [B, N, K] int64
  torch::Tensor positions;          // [B, N, K] int64, per document
  torch::Tensor context_positions;  // [B, S] int64, per document
  torch::Tensor labels;             // [B, N, K] int64, ids[min(a + k, S - 1)]
  torch::Tensor weights;            // [B, N, K] fp32, decay included, 0 where unsupervised
  torch::Tensor teacher_rows;       // [B, N, K] int64 row in its sequence, -1 where weight is 0
};

/// Which positions may be anchors: supervised, followed by a supervised token of the same
/// document. A position's key hash(seed, epoch, sequence, position in the sequence) depends
/// neither on the batch nor on the place in a packed row.
struct AnchorRule {
  int64_t num_anchors = 0;           // of the whole batch: those with the smallest keys
  int64_t anchors_per_sequence = 0;  // most that one offers, smallest keys first; 0 = all
  uint64_t seed = 0;
  uint64_t epoch = 0;
};

/// N is the largest number drawn in one row (at least 1); a batch without an eligible position
/// gives blocks that are not kept.
Anchors choose_anchors(
    const BlockRows& rows,
    const std::vector<RowPart>& parts,  // what the rows hold, in the order of rows
    const AnchorRule& rule);

/// The same for rows of one sequence each.
Anchors choose_anchors(
    const BlockRows& rows,
    const std::vector<int64_t>& sequences,
    const AnchorRule& rule);

/// Errors: ShapeError if tensors disagree or an anchor of a kept block lies outside its row.
/// A block whose anchor lies in document -1 is not kept.
DraftBlocks make_draft_blocks(const BlockRows& rows, const Anchors& anchors, const BlockRule& rule);

/// The same blocks over one row [1, B S] in which the sequences stand one after the other, as
/// packed documents do. Blocks that are not kept are left out, so that a batch costs what its
/// anchors cost and not B times the most that one sequence has: N is the number of kept blocks (at
/// least one block, kept or not, stays).
DraftBlocks join_rows(const DraftBlocks& blocks);

}  // namespace draftsmith::data
