// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <limits>

#include "draftsmith/ops/storage.h"

#include "tests/ops/cuda/kernel_place.h"
#include "tests/support/random_tensor.h"

namespace draftsmith::testing {
namespace {

using torch::Tensor;

struct Result {
  Tensor ids, log_probs;
};

Result run(KernelPlace& place, const Tensor& logits, int64_t k) {
  const auto here = logits.to(place.device());
  const int64_t r = logits.size(0);
  const auto options = torch::TensorOptions(torch::kFloat).device(place.device());
  Result result{torch::full({r, k}, -1, options.dtype(torch::kLong)), torch::ones({r, k}, options)};
  place.run(ops::TopKParams{
      .storage = ops::storage_of(logits),
      .logits = here.const_data_ptr(),
      .rows = r,
      .vocab_size = logits.size(1),
      .k = k,
      .ids = result.ids.data_ptr<int64_t>(),
      .log_probs = result.log_probs.data_ptr<float>()});
  return result;
}

void require_top(KernelPlace& place, const Tensor& logits, int64_t k, const std::string& what) {
  CpuPlace cpu;
  const auto got = run(place, logits, k);
  const auto wanted = run(cpu, logits, k);
  require_same(got.ids, wanted.ids, what + " ids");
  require_close(got.log_probs, wanted.log_probs, 1e-5, 1e-5, what + " log probabilities");
}

void check_random(KernelPlace& place) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat}) {
    for (const int64_t V : {5, 1001, 5000}) {
      const auto logits = (4 * random_normal({2, V}, 5)).to(dtype);
      for (const int64_t k : {1, 3, 32, 1024})
        if (k <= V)
          require_top(place, logits, k, fmt::format("{} V={} k={}", c10::toString(dtype), V, k));
    }
  }
}

void check_orders(KernelPlace& place) {
  // Ascending: every logit is better than all before. Equal: none is, and the lowest ids stay.
  const auto rising = torch::arange(12000, torch::kFloat).view({1, -1}) / 1000;
  require_top(place, rising, 100, "rising");
  require_top(place, rising.flip(1), 100, "falling");
  require_top(place, torch::zeros({1, 12000}), 100, "equal");
  require_top(place, (rising * 3).remainder(4).floor(), 700, "steps");
  require_top(place, torch::tensor({0.0F, -0.0F, 0.0F, -1.0F}).view({1, 4}), 3, "zeros");
}

void check_impossible_words(KernelPlace& place) {
  auto logits = random_normal({1, 3000}, 6).to(torch::kFloat);
  logits.slice(1, 10, 2990) = -std::numeric_limits<float>::infinity();
  CpuPlace cpu;
  const auto got = run(place, logits, 24);
  require_same(got.ids, run(cpu, logits, 24).ids, "ids");
  require_close(got.log_probs.exp().sum(), torch::ones({1}), 1e-5, 0, "sum of probabilities");
}

}  // namespace

std::vector<KernelCheck> top_k_checks() {
  return {
      {"TopKHasIdsAndLogProbabilitiesOfTheCpu", check_random},
      {"TopKStandsEveryOrder", check_orders},
      {"TopKPassesOverImpossibleWords", check_impossible_words}};
}

}  // namespace draftsmith::testing
