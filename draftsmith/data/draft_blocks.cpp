// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/draft_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"
#include "draftsmith/ops/checks.h"

namespace draftsmith::data {
namespace {

/// Host copies in plain types, with the document of every position made explicit.
struct HostRows {
  int64_t B = 0, S = 0;
  torch::Tensor ids, mask, documents;

  explicit HostRows(const BlockRows& rows) {
    const auto [batch, length] = ops::dims<2>(rows.ids, "input_ids");
    B = batch;
    S = length;
    ops::check_shape(rows.mask, {B, S}, "loss_mask");
    ids = rows.ids.to(torch::kCPU, torch::kLong).contiguous();
    mask = rows.mask.ne(0).to(torch::kCPU, torch::kByte).contiguous();
    if (rows.document_ids.defined()) {
      ops::check_shape(rows.document_ids, {B, S}, "document_ids");
      documents = rows.document_ids.to(torch::kCPU, torch::kLong).contiguous();
    } else {
      documents = torch::zeros({B, S}, torch::kLong);
    }
  }
  int64_t id(int64_t b, int64_t i) const { return ids.data_ptr<int64_t>()[b * S + i]; }
  bool is_supervised(int64_t b, int64_t i) const {
    return mask.data_ptr<uint8_t>()[b * S + i] != 0;
  }
  int64_t document(int64_t b, int64_t i) const { return documents.data_ptr<int64_t>()[b * S + i]; }
  bool is_eligible(int64_t b, int64_t i) const {
    return i + 1 < S && is_supervised(b, i) && is_supervised(b, i + 1) && document(b, i) != -1 &&
           document(b, i) == document(b, i + 1);
  }
};

struct KeyedAnchor {
  uint64_t key;
  int64_t row, position;
  auto operator<=>(const KeyedAnchor&) const = default;
};

/// First index of the document that position i of a row stands in, for all i.
std::vector<int64_t> find_document_starts(const HostRows& rows, int64_t b) {
  std::vector<int64_t> starts(static_cast<size_t>(rows.S), 0);
  for (int64_t i = 1; i < rows.S; ++i) {
    const bool continues = rows.document(b, i) == rows.document(b, i - 1);
    starts[static_cast<size_t>(i)] = continues ? starts[static_cast<size_t>(i - 1)] : i;
  }
  return starts;
}

template <class T>
T* pointer_at(const torch::Tensor& tensor, int64_t b, int64_t n) {
  return tensor.data_ptr<T>() + (b * tensor.size(1) + n) * tensor.size(2);
}

/// Fills block n of row b, whose anchor is inside a document.
void fill_block(
    DraftBlocks& blocks,
    const HostRows& rows,
    int64_t b,
    int64_t n,
    int64_t anchor,
    int64_t document_start,
    const BlockRule& rule) {
  int64_t* ids = pointer_at<int64_t>(blocks.block_ids, b, n);
  int64_t* positions = pointer_at<int64_t>(blocks.positions, b, n);
  int64_t* labels = pointer_at<int64_t>(blocks.labels, b, n);
  int64_t* teacher_rows = pointer_at<int64_t>(blocks.teacher_rows, b, n);
  float* weights = pointer_at<float>(blocks.weights, b, n);
  ids[0] = rows.id(b, anchor);
  for (int64_t k = 0; k < rule.block_size; ++k) {
    const int64_t i = anchor + k;
    positions[k] = i - document_start;
    labels[k] = rows.id(b, std::min(i, rows.S - 1));
    const bool has_label = k >= 1 && i < rows.S && rows.is_supervised(b, i) &&
                           rows.document(b, i) == rows.document(b, anchor);
    if (!has_label) continue;
    const double decay =
        rule.decay_gamma > 0 ? std::exp(-static_cast<double>(k - 1) / rule.decay_gamma) : 1.0;
    weights[k] = static_cast<float>(decay);
    teacher_rows[k] = i - 1;
  }
}

}  // namespace

Anchors
choose_anchors(const BlockRows& rows, const std::vector<RowPart>& parts, const AnchorRule& rule) {
  const HostRows host(rows);
  const auto keep_smallest = [](std::vector<KeyedAnchor>& anchors, int64_t limit) {
    const auto count = static_cast<size_t>(limit);
    if (anchors.size() <= count) return;
    std::nth_element(anchors.begin(), anchors.begin() + limit, anchors.end());
    anchors.resize(count);
  };
  std::vector<KeyedAnchor> offered;
  for (const RowPart& part : parts) {
    DS_CHECK(part.row < host.B && part.row_begin + part.length <= host.S);
    std::vector<KeyedAnchor> own;
    for (int64_t i = 0; i < part.length; ++i) {
      const int64_t place = part.row_begin + i;
      if (!host.is_eligible(part.row, place)) continue;
      const auto position = static_cast<uint64_t>(part.sequence_begin + i);
      own.push_back(
          {hash_key({rule.seed, rule.epoch, static_cast<uint64_t>(part.sequence), position}),
           part.row, place});
    }
    if (rule.anchors_per_sequence > 0) keep_smallest(own, rule.anchors_per_sequence);
    offered.insert(offered.end(), own.begin(), own.end());
  }
  keep_smallest(offered, rule.num_anchors);

  std::vector<std::vector<int64_t>> chosen(static_cast<size_t>(host.B));
  int64_t width = 1;
  for (const auto& anchor : offered) {
    auto& row = chosen[static_cast<size_t>(anchor.row)];
    row.push_back(anchor.position);
    width = std::max(width, static_cast<int64_t>(row.size()));
  }
  Anchors anchors{
      torch::zeros({host.B, width}, torch::kLong), torch::zeros({host.B, width}, torch::kBool)};
  for (int64_t b = 0; b < host.B; ++b) {
    auto& row = chosen[static_cast<size_t>(b)];
    std::sort(row.begin(), row.end());
    std::copy(row.begin(), row.end(), anchors.positions[b].data_ptr<int64_t>());
    std::fill_n(anchors.keep[b].data_ptr<bool>(), row.size(), true);
  }
  return anchors;
}

Anchors choose_anchors(
    const BlockRows& rows,
    const std::vector<int64_t>& sequences,
    const AnchorRule& rule) {
  std::vector<RowPart> parts;
  for (const int64_t sequence : sequences)
    parts.push_back({static_cast<int64_t>(parts.size()), 0, rows.ids.size(1), sequence, 0});
  return choose_anchors(rows, parts, rule);
}

DraftBlocks
make_draft_blocks(const BlockRows& rows, const Anchors& anchors, const BlockRule& rule) {
  const HostRows host(rows);
  const auto [B, N] = ops::dims<2>(anchors.positions, "anchors");
  const int64_t K = rule.block_size;
  ops::check_shape(anchors.positions, {host.B, N}, "anchors");
  ops::check_shape(anchors.keep, {host.B, N}, "keep");
  const auto positions = anchors.positions.to(torch::kCPU, torch::kLong).contiguous();
  const auto keep = anchors.keep.ne(0).to(torch::kCPU).contiguous().clone();

  DraftBlocks blocks;
  blocks.num_rows = B;
  blocks.block_ids = torch::full({B, N, K}, rule.mask_token_id, torch::kLong);
  blocks.positions = torch::arange(K, torch::kLong).expand({B, N, K}).contiguous();
  blocks.labels = host.ids.select(1, 0).view({B, 1, 1}).expand({B, N, K}).contiguous();
  blocks.weights = torch::zeros({B, N, K}, torch::kFloat);
  blocks.teacher_rows = torch::full({B, N, K}, -1, torch::kLong);
  blocks.context_positions = torch::zeros({B, host.S}, torch::kLong);
  auto context_begin = torch::zeros({B, N}, torch::kLong);
  auto kept_anchors = torch::zeros({B, N}, torch::kLong);

  for (int64_t b = 0; b < B; ++b) {
    const auto starts = find_document_starts(host, b);
    for (int64_t i = 0; i < host.S; ++i)
      blocks.context_positions[b].data_ptr<int64_t>()[i] = i - starts[static_cast<size_t>(i)];
    for (int64_t n = 0; n < N; ++n) {
      bool& is_kept = keep.data_ptr<bool>()[b * N + n];
      const int64_t anchor = positions.data_ptr<int64_t>()[b * N + n];
      if (!is_kept) continue;
      if (anchor < 0 || anchor >= host.S) {
        throw ShapeError(
            {.what = "anchor",
             .expected = fmt::format("a position from 0 to {}", host.S - 1),
             .got = fmt::format("{}", anchor),
             .where = fmt::format("row {}, block {}", b, n)});
      }
      is_kept = host.document(b, anchor) != -1;
      if (!is_kept) continue;
      const int64_t start = starts[static_cast<size_t>(anchor)];
      kept_anchors.data_ptr<int64_t>()[b * N + n] = anchor;
      context_begin.data_ptr<int64_t>()[b * N + n] = start;
      fill_block(blocks, host, b, n, anchor, start, rule);
    }
  }
  blocks.layout = {kept_anchors, keep, context_begin, K};
  return blocks;
}

DraftBlocks join_rows(const DraftBlocks& blocks) {
  const auto& layout = blocks.layout;
  const int64_t B = layout.keep.size(0);
  const int64_t K = layout.block_size;
  const int64_t S = blocks.context_positions.size(1);
  auto kept = layout.keep.flatten().nonzero().squeeze(1);
  if (kept.size(0) == 0) kept = torch::zeros({1}, torch::kLong);
  const auto take = [&](const torch::Tensor& tensor) {  // [B, N, ...] -> [1, M, ...]
    return tensor.flatten(0, 1).index_select(0, kept).unsqueeze(0);
  };
  const auto row_begin = torch::arange(B, torch::kLong).mul_(S);
  const auto is_labelled = blocks.teacher_rows >= 0;

  DraftBlocks joined;
  joined.num_rows = blocks.num_rows;
  joined.layout = {
      take(layout.anchors + row_begin.view({B, 1})), take(layout.keep),
      take(layout.context_begin + row_begin.view({B, 1})), K};
  joined.block_ids = take(blocks.block_ids);
  joined.positions = take(blocks.positions);
  joined.context_positions = blocks.context_positions.reshape({1, B * S});
  joined.labels = take(blocks.labels);
  joined.weights = take(blocks.weights);
  joined.teacher_rows = take(
      (blocks.teacher_rows + row_begin.view({B, 1, 1})).where(is_labelled, blocks.teacher_rows));
  return joined;
}

}  // namespace draftsmith::data
