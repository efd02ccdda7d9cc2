// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/product_kernels.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "draftsmith/ops/loss_rows.h"
#include "draftsmith/ops/product.h"
#include "draftsmith/ops/tile_rows.h"

namespace draftsmith::memory {
namespace {

/// Which factor is a transposed view.
enum class Transposed { kNone, kLeft, kRight };

class Shapes {
 public:
  /// [M, K] times [K, N].
  void add(Transposed side, int64_t M, int64_t K, int64_t N, bool is_beside_others = false) {
    const int64_t length = std::max(M, N);
    const int64_t part = ops::part_of_product(M, N, is_beside_others);
    for (const int64_t size : {std::min(part, length), length % part})
      if (size > 0)
        shapes_.insert(N > M ? std::tuple(side, M, K, size) : std::tuple(side, size, K, N));
  }
  /// Forward and the gradients of x and of the weight.
  void add_linear(int64_t rows, int64_t in, int64_t out, bool has_input_gradient = true) {
    add(Transposed::kRight, rows, in, out);
    if (has_input_gradient) add(Transposed::kNone, rows, out, in);
    add(Transposed::kLeft, out, rows, in);
  }
  int64_t count() const { return static_cast<int64_t>(shapes_.size()); }

 private:
  std::set<std::tuple<Transposed, int64_t, int64_t, int64_t>> shapes_;
};

torch::Tensor spread_anchors(const StepShape& s) {
  const auto numbers = torch::arange(s.blocks, torch::kLong);
  return numbers.mul(s.context_tokens).floor_divide(std::max<int64_t>(1, s.blocks)).unsqueeze(0);
}

void add_tiles(Shapes& shapes, const StepShape& s, int64_t window) {
  const auto& d = s.drafter;
  const auto anchors = spread_anchors(s);
  const ops::BlockLayout layout{
      anchors, torch::ones_like(anchors, torch::kBool), torch::zeros_like(anchors), d.block_size};
  const ops::TileRule rule{d.block_size, d.num_heads / d.num_kv_heads};
  const auto cost = [&](int64_t blocks, int64_t context, double /*seen*/) {
    return rule.cost(blocks, context);
  };
  const bool is_beside_others = s.threads > 1 && d.num_kv_heads > 1;
  for (const auto& tile :
       ops::plan_block_tiles(layout, {window, true}, 0, rule.max_blocks(), cost)) {
    const auto columns = ops::list_columns(tile, d.block_size);
    const int64_t rows = columns.own * rule.repeat, E = d.head_dim;
    shapes.add(Transposed::kRight, rows, E, columns.width, is_beside_others);
    shapes.add(Transposed::kNone, rows, columns.width, E, is_beside_others);
    shapes.add(Transposed::kLeft, columns.width, rows, E, is_beside_others);
  }
}

void add_head_products(Shapes& shapes, const StepShape& s) {
  const int64_t V = s.drafter.vocab_size, D = s.drafter.hidden_size;
  const auto anchors = spread_anchors(s);
  std::vector<int64_t> teacher_rows;
  for (int64_t n = 0; n < s.blocks; ++n)
    for (int64_t k = 1; k < s.drafter.block_size; ++k)
      teacher_rows.push_back(anchors.const_data_ptr<int64_t>()[n] + k);
  for (const auto& chunk : ops::plan_even_chunks(
           s.has_teacher ? teacher_rows.data() : nullptr, s.supervised_rows(),
           std::max<int64_t>(1, s.chunk_rows))) {
    const int64_t rows = chunk.end - chunk.begin;
    const auto teacher = static_cast<int64_t>(chunk.distinct.size());
    shapes.add(Transposed::kRight, rows + teacher, D, V);
    shapes.add(Transposed::kNone, rows, V, D);
    // Logits of some labels.
    const int64_t words = std::min<int64_t>(256, std::max(rows, teacher));
    shapes.add(Transposed::kRight, rows, D, words);
    if (teacher > 0) shapes.add(Transposed::kRight, teacher, D, words);
  }
}

void add_target(Shapes& shapes, const StepShape& s) {
  const auto& t = s.target;
  const int64_t T = s.context_tokens, D = t.hidden_size;
  const int64_t heads = t.num_heads * t.head_dim, kv_heads = t.num_kv_heads * t.head_dim;
  for (const auto& [in, out] :
       {std::pair(D, heads),
        {D, kv_heads},
        {heads, D},
        {D, t.intermediate_size},
        {t.intermediate_size, D}})
    shapes.add(Transposed::kRight, T, in, out);
}

}  // namespace

int64_t count_product_kernels(const StepShape& s) {
  Shapes shapes;
  if (s.shares_target && !s.has_stored_features && s.target_element_bytes == 2 &&
      s.target.num_layers > 0)
    add_target(shapes, s);
  if (s.element_bytes != 2) return shapes.count();
  const auto& d = s.drafter;
  const int64_t T = s.context_tokens, R = s.rows(), D = d.hidden_size;
  const int64_t heads = d.num_heads * d.head_dim, kv_heads = d.num_kv_heads * d.head_dim;
  const auto captured = static_cast<int64_t>(d.target_layer_ids.size());
  shapes.add_linear(T, captured * D, D, /*has_input_gradient=*/false);
  shapes.add_linear(T, D, kv_heads);
  for (const auto& [in, out] :
       {std::pair(D, heads),
        {D, kv_heads},
        {heads, D},
        {D, d.intermediate_size},
        {d.intermediate_size, D}})
    shapes.add_linear(R, in, out);
  if (s.loss == ops::LossMethod::kFused) add_head_products(shapes, s);
  if (s.attention == ops::AttentionMethod::kBlock) {
    std::set<int64_t> windows;
    for (const bool is_sliding : d.is_sliding)
      windows.insert(is_sliding ? d.sliding_window : 0);
    for (const int64_t window : windows)
      add_tiles(shapes, s, window);
  }
  return shapes.count();
}

}  // namespace draftsmith::memory
