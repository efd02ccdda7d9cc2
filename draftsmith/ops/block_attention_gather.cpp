// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "draftsmith/ops/block_methods.h"

namespace draftsmith::ops {
namespace {

using torch::Tensor;

/// Some kept blocks of one row.
struct BlockChunk {
  int64_t row;
  std::vector<int64_t> blocks;
};

std::vector<BlockChunk> list_chunks(const BlockLayout& layout) {
  std::vector<BlockChunk> chunks;
  const auto keep = layout.keep.to(torch::kBool).contiguous();
  const int64_t N = keep.size(1);
  for (int64_t b = 0; b < keep.size(0); ++b) {
    for (int64_t n = 0; n < N; ++n) {
      if (!keep.const_data_ptr<bool>()[b * N + n]) continue;
      const bool is_open = !chunks.empty() && chunks.back().row == b &&
                           static_cast<int64_t>(chunks.back().blocks.size()) < kGatheredBlocks;
      if (!is_open) chunks.push_back({b, {}});
      chunks.back().blocks.push_back(n);
    }
  }
  return chunks;
}

/// What a chunk reads of its row.
struct RowInputs {
  Tensor query;                       // [n K, H, E]
  Tensor context_key, context_value;  // [S, G, E]
  Tensor block_key, block_value;      // [n K, G, E]
};

/// The chunk's gathered keys, and who sees them, on the device of the inputs; the layout is on the
/// host.
struct Gathering {
  Tensor slots;    // [n K] rows of the queries
  Tensor indices;  // [n L] context positions
  Tensor mask;     // [n, 1, K, L + K]

  Gathering(
      const BlockChunk& chunk,
      const BlockLayout& layout,
      const BlockVisibility& visibility,
      torch::Device device) {
    const int64_t K = layout.block_size;
    const auto blocks = torch::tensor(chunk.blocks, torch::kLong);
    const auto n = blocks.size(0);
    const auto anchors = layout.anchors[chunk.row].index_select(0, blocks).view({n, 1});
    auto begins = layout.context_begin[chunk.row].index_select(0, blocks).view({n, 1});
    if (visibility.window > 0) begins = begins.maximum(anchors - visibility.window + 1);
    const int64_t L = std::max<int64_t>(0, (anchors - begins).max().item<int64_t>());
    const auto slot = torch::arange(K, torch::kLong);
    slots = (blocks.view({n, 1}) * K + slot).flatten();
    const auto positions = begins + torch::arange(L, torch::kLong);  // [n, L]
    auto context = (positions < anchors).view({n, 1, L}).expand({n, K, L});
    if (visibility.window > 0) {
      context = context.logical_and(
          anchors.view({n, 1, 1}) + slot.view({1, K, 1}) - positions.view({n, 1, L}) <
          visibility.window);
    }
    auto own = torch::ones({K, K}, torch::kBool);
    if (visibility.is_causal_block) own = own.tril();
    // What lies beyond a shorter slice is masked, but must be of the same document all the same:
    // a weight of 0 times another document's NaN is NaN.
    indices = positions.minimum(anchors - 1).maximum(begins).flatten().to(device);
    mask = torch::cat({context, own.expand({n, K, K})}, 2).unsqueeze(1).to(device);
    slots = slots.to(device);
  }

  RowInputs take(const BlockAttentionInputs& in, int64_t b) const {
    return {
        in.query[b].index_select(0, slots), in.context_key[b], in.context_value[b],
        in.block_key[b].index_select(0, slots), in.block_value[b].index_select(0, slots)};
  }

  /// Heads that share a key head are rows of one head here: libtorch has fast kernels for masks and
  /// for grouped heads, but on some devices not for both.
  Tensor attend(const RowInputs& in) const {  // [n K, H, E]
    const int64_t n = mask.size(0), K = mask.size(2), L = mask.size(3) - K;
    const int64_t H = in.query.size(1), E = in.query.size(2), G = in.block_key.size(1);
    const auto join = [&](const Tensor& context, const Tensor& own) {
      return torch::cat(
                 {context.index_select(0, indices).view({n, L, G, E}), own.view({n, K, G, E})}, 1)
          .transpose(1, 2);
    };
    const int64_t repeat = H / G;
    const auto query = in.query.view({n, K, G, repeat, E}).permute({0, 2, 3, 1, 4});
    const auto out = at::scaled_dot_product_attention(
        query.reshape({n, G, repeat * K, E}), join(in.context_key, in.block_key),
        join(in.context_value, in.block_value), mask.repeat({1, 1, repeat, 1}));
    return out.reshape({n, G, repeat, K, E}).permute({0, 3, 1, 2, 4}).reshape({n * K, H, E});
  }
};

struct GatheredAttention : torch::autograd::Function<GatheredAttention> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& query,
      const Tensor& context_key,
      const Tensor& context_value,
      const Tensor& block_key,
      const Tensor& block_value,
      const BlockLayout& layout,
      const BlockVisibility& visibility) {
    const BlockAttentionInputs in{query, context_key, context_value, block_key, block_value};
    auto out = torch::zeros_like(query);
    for (const auto& chunk : list_chunks(layout)) {
      const Gathering gathering(chunk, layout, visibility, in.query.device());
      out[chunk.row].index_copy_(
          0, gathering.slots, gathering.attend(gathering.take(in, chunk.row)));
    }
    save_call(context, in, layout, visibility);
    return out;
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list upstream) {
    const SavedCall call(context);
    const BlockAttentionInputs& in = call.inputs;
    const auto wide = in.query.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    torch::autograd::variable_list sums;
    for (const Tensor& tensor :
         {in.query, in.context_key, in.context_value, in.block_key, in.block_value})
      sums.push_back(torch::zeros(tensor.sizes(), tensor.options().dtype(wide)));
    for (const auto& chunk : list_chunks(call.layout)) {
      const Gathering gathering(chunk, call.layout, call.visibility, in.query.device());
      const at::AutoGradMode with_grad(true);
      auto row = gathering.take(in, chunk.row);
      for (Tensor* leaf :
           {&row.query, &row.context_key, &row.context_value, &row.block_key, &row.block_value})
        *leaf = leaf->detach().set_requires_grad(true);
      const auto gradients = torch::autograd::grad(
          {gathering.attend(row)},
          {row.query, row.context_key, row.context_value, row.block_key, row.block_value},
          {upstream[0][chunk.row].index_select(0, gathering.slots)});
      const at::NoGradGuard no_grad;
      sums[0][chunk.row].index_copy_(0, gathering.slots, gradients[0].to(wide));
      sums[1][chunk.row].add_(gradients[1]);
      sums[2][chunk.row].add_(gradients[2]);
      sums[3][chunk.row].index_copy_(0, gathering.slots, gradients[3].to(wide));
      sums[4][chunk.row].index_copy_(0, gathering.slots, gradients[4].to(wide));
    }
    for (Tensor& sum : sums)
      sum = sum.to(in.query.scalar_type());
    sums.resize(7);
    return sums;
  }
};

}  // namespace

Tensor attend_gathered(
    const BlockAttentionInputs& in,
    const BlockLayout& layout,
    const BlockVisibility& visibility) {
  return GatheredAttention::apply(
      in.query, in.context_key, in.context_value, in.block_key, in.block_value, layout, visibility);
}

}  // namespace draftsmith::ops
