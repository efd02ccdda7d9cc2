// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/cuda/kernel_place.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

namespace draftsmith::testing {

using torch::Tensor;

void require(bool is_right, const std::string& what) {
  if (!is_right) throw std::runtime_error(what);
}

void require_close(
    const Tensor& got,
    const Tensor& wanted,
    double relative,
    double absolute,
    const std::string& what) {
  const auto a = got.cpu().to(torch::kDouble).flatten();
  const auto b = wanted.cpu().to(torch::kDouble).flatten();
  require(a.numel() == b.numel(), what + ": another number of values");
  const auto excess = (a - b).abs() - (relative * b.abs() + absolute);
  const auto is_wrong = (excess <= 0).logical_not();  // of NaN too
  const int64_t wrong = is_wrong.sum().item<int64_t>();
  if (wrong == 0) return;
  const int64_t place = is_wrong.nonzero()[0][0].item<int64_t>();
  throw std::runtime_error(fmt::format(
      "{}: expected {}, got {} at {} ({} of {} values differ)", what, b[place].item<double>(),
      a[place].item<double>(), place, wrong, a.numel()));
}

void require_same(const Tensor& got, const Tensor& wanted, const std::string& what) {
  if (got.cpu().equal(wanted.cpu())) return;
  require_close(got, wanted, 0, 0, what);
  throw std::runtime_error(what + ": expected the same bits, got others");
}

void require_roundings(const Tensor& got, const Tensor& wanted, const std::string& what) {
  if (got.scalar_type() != torch::kBFloat16) return;
  const int64_t others = got.cpu().ne(wanted.cpu()).sum().item<int64_t>();
  require(
      others <= 2 + got.numel() * 3 / 100,
      fmt::format(
          "{}: expected the same roundings, got {} others of {}", what, others, got.numel()));
}

double rounding_of(torch::ScalarType dtype) {
  if (dtype == torch::kBFloat16) return std::exp2(-7);
  return dtype == torch::kFloat ? 1e-5 : 1e-12;
}

std::vector<KernelCheck> kernel_checks() {
  std::vector<KernelCheck> all;
  for (const auto& some :
       {lm_head_loss_checks(), norm_checks(), elementwise_checks(), top_k_checks(),
        block_attention_checks(), delta_rule_checks()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace draftsmith::testing
