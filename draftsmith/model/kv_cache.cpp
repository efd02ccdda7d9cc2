// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/model/kv_cache.h"

#include "draftsmith/base/error.h"

namespace draftsmith::model {

KvCache::KvCache(
    int64_t num_layers,
    int64_t num_rows,
    int64_t capacity,
    int64_t num_kv_heads,
    int64_t head_dim,
    torch::TensorOptions options)
    : KvCache(
          num_rows,
          capacity,
          num_kv_heads,
          head_dim,
          std::vector<torch::TensorOptions>(static_cast<size_t>(num_layers), options)) {}

KvCache::KvCache(
    int64_t num_rows,
    int64_t capacity,
    int64_t num_kv_heads,
    int64_t head_dim,
    const std::vector<torch::TensorOptions>& options)
    : capacity_(capacity), lengths_(static_cast<size_t>(num_rows), 0) {
  for (const auto& kind : options) {
    keys_.push_back(torch::zeros({num_rows, capacity, num_kv_heads, head_dim}, kind));
    values_.push_back(torch::zeros({num_rows, capacity, num_kv_heads, head_dim}, kind));
  }
}

torch::Tensor KvCache::next_positions(int64_t num_tokens) const {
  const auto starts = torch::tensor(lengths_, torch::kLong).unsqueeze(1);
  return starts + torch::arange(num_tokens, torch::kLong).unsqueeze(0);
}

void KvCache::write(int64_t layer, const torch::Tensor& keys, const torch::Tensor& values) {
  const int64_t T = keys.size(1);
  std::vector<int64_t> rows;  // of the cache seen as [B x capacity, G E]
  for (int64_t b = 0; b < num_rows(); ++b) {
    const int64_t length = lengths_[static_cast<size_t>(b)];
    DS_CHECK(length + T <= capacity_);
    for (int64_t t = 0; t < T; ++t)
      rows.push_back(b * capacity_ + length + t);
  }
  const auto index = torch::tensor(rows, torch::kLong).to(keys.device());
  const auto put = [&](torch::Tensor& cache, const torch::Tensor& tokens) {
    const int64_t width = cache.size(2) * cache.size(3);
    cache.view({-1, width}).index_copy_(0, index, tokens.reshape({-1, width}));
  };
  put(keys_[static_cast<size_t>(layer)], keys);
  put(values_[static_cast<size_t>(layer)], values);
}

void KvCache::advance(const std::vector<int64_t>& added) {
  DS_CHECK(added.size() == lengths_.size());
  for (size_t b = 0; b < added.size(); ++b)
    lengths_[b] += added[b];
}

void KvCache::keep(const std::vector<std::vector<int64_t>>& paths) {
  DS_CHECK(paths.size() == lengths_.size());
  std::vector<int64_t> from;  // rows of the cache seen as [B x capacity, G E]
  std::vector<int64_t> to;
  for (size_t b = 0; b < paths.size(); ++b) {
    const int64_t first = static_cast<int64_t>(b) * capacity_ + lengths_[b];
    for (size_t i = 0; i < paths[b].size(); ++i) {
      const auto place = static_cast<int64_t>(i);
      DS_CHECK(paths[b][i] >= place && lengths_[b] + paths[b][i] < capacity_);
      if (paths[b][i] == place) continue;
      from.push_back(first + paths[b][i]);
      to.push_back(first + place);
    }
    lengths_[b] += static_cast<int64_t>(paths[b].size());
  }
  if (from.empty()) return;
  const auto sources = torch::tensor(from, torch::kLong);
  const auto places = torch::tensor(to, torch::kLong);
  const auto move = [&](torch::Tensor& cache) {
    auto rows = cache.view({-1, cache.size(2) * cache.size(3)});
    rows.index_copy_(
        0, places.to(cache.device()), rows.index_select(0, sources.to(cache.device())));
  };
  for (size_t i = 0; i < keys_.size(); ++i) {
    move(keys_[i]);
    move(values_[i]);
  }
}

KvCache KvCache::clone() const {
  KvCache copy = *this;
  for (size_t i = 0; i < keys_.size(); ++i) {
    copy.keys_[i] = keys_[i].clone();
    copy.values_[i] = values_[i].clone();
  }
  return copy;
}

void KvCache::select_rows(const std::vector<int64_t>& index) {
  const auto rows = torch::tensor(index, torch::kLong);
  for (size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] = keys_[i].index_select(0, rows.to(keys_[i].device()));
    values_[i] = values_[i].index_select(0, rows.to(values_[i].device()));
  }
  std::vector<int64_t> lengths;
  for (const int64_t b : index)
    lengths.push_back(lengths_[static_cast<size_t>(b)]);
  lengths_ = std::move(lengths);
}

}  // namespace draftsmith::model
