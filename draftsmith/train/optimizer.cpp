// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/split_float.h"

namespace draftsmith::train {

namespace {

using torch::Tensor;

/// Parameters updated together: their float32 numbers stay in a cache, and whole vectors of any
/// processor fit, so that the result does not depend on it.
constexpr int64_t kPart = int64_t{1} << 20;

// Prefixes of tensors in a saved state.
constexpr const char* kMaster = "master.";
constexpr const char* kLowBits = "master_low.";

template <class Run>
void for_parts(int64_t count, const Run& run) {
  for (int64_t first = 0; first < count; first += kPart)
    run(first, std::min(kPart, count - first));
}

Tensor part_of(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.view(-1).narrow(0, first, count);
}

/// Writes weights, and what they lack if it is kept, from float32 masters.
void round_masters(const Tensor& masters, const Tensor& weights, const Tensor& low) {
  for_parts(weights.numel(), [&](int64_t first, int64_t count) {
    ops::split_float(
        part_of(masters, first, count), part_of(weights, first, count),
        low.defined() ? part_of(low, first, count) : Tensor());
  });
}

}  // namespace

AdamW::AdamW(const Parameters& parameters, const AdamWSettings& settings) : settings_(settings) {
  const bool has_masters =
      !parameters.empty() && parameters.front().second.scalar_type() != torch::kFloat;
  if (has_masters) masters_kind_ = settings.splits_masters ? Masters::kSplit : Masters::kFloat;
  for (const auto& [name, parameter] : parameters) {
    const auto weight = parameter.detach();
    DS_CHECK(weight.is_contiguous());
    const auto sums = weight.options().dtype(torch::kFloat);
    names_.push_back(name);
    weights_.push_back(weight);
    masters_.push_back(
        masters_kind_ == Masters::kSplit
            ? torch::zeros(weight.sizes(), weight.options().dtype(torch::kShort))
            : weight.to(torch::kFloat));
    for (auto* list : {&gradients_, &first_, &second_})
      list->push_back(torch::zeros(weight.sizes(), sums));
  }
}

void AdamW::accumulate(const std::vector<torch::Tensor>& gradients) {
  DS_CHECK(gradients.size() == gradients_.size());
  for (size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i].defined()) gradients_[i].add_(gradients[i]);
}

void AdamW::clear_gradients() {
  for (auto& gradient : gradients_)
    gradient.zero_();
}

double AdamW::gradient_norm(double scale) const {
  double square_sum = 0;
  for (const auto& gradient : gradients_) {
    const double norm = gradient.norm().item<double>();
    square_sum += norm * norm;
  }
  return scale * std::sqrt(square_sum);
}

void AdamW::update(size_t i, int64_t first, int64_t count, double lr, double scale) {
  const auto weight = part_of(weights_[i], first, count);
  const auto kept = part_of(masters_[i], first, count);
  const auto master = masters_kind_ == Masters::kSplit ? ops::join_float(weight, kept) : kept;
  at::_fused_adamw_(
      {master}, {part_of(gradients_[i], first, count).mul_(scale)},
      {part_of(first_[i], first, count)}, {part_of(second_[i], first, count)},
      /*max_exp_avg_sqs=*/{}, {torch::full({}, static_cast<double>(num_steps_), torch::kFloat)}, lr,
      settings_.beta1, settings_.beta2, settings_.weight_decay, settings_.eps, /*amsgrad=*/false,
      /*maximize=*/false);
  if (masters_kind_ != Masters::kNone)
    ops::split_float(master, weight, masters_kind_ == Masters::kSplit ? kept : Tensor());
}

void AdamW::step(double lr, double scale, double norm) {
  const at::NoGradGuard no_grad;
  if (settings_.clip_norm > 0) scale *= std::min(1.0, settings_.clip_norm / (norm + 1e-6));
  ++num_steps_;
  for (size_t i = 0; i < weights_.size(); ++i)
    for_parts(weights_[i].numel(), [&](int64_t first, int64_t count) {
      update(i, first, count, lr, scale);
    });
  clear_gradients();
}

formats::NamedTensors AdamW::state() const {
  const char* masters = masters_kind_ == Masters::kSplit ? kLowBits : kMaster;
  formats::NamedTensors state;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (has_masters()) state.emplace_back(masters + names_[i], masters_[i]);
    state.emplace_back("exp_avg." + names_[i], first_[i]);
    state.emplace_back("exp_avg_sq." + names_[i], second_[i]);
  }
  return state;
}

void AdamW::load_masters(const formats::SafetensorsReader& reader, size_t i) {
  const auto& weight = weights_[i];
  const auto sizes = weight.sizes();
  if (reader.has(kLowBits + names_[i])) {
    const auto low = reader.tensor(kLowBits + names_[i], sizes);
    if (masters_kind_ == Masters::kSplit) {
      masters_[i].copy_(low);
    } else {
      for_parts(weight.numel(), [&](int64_t first, int64_t count) {
        part_of(masters_[i], first, count)
            .copy_(ops::join_float(part_of(weight, first, count), part_of(low, first, count)));
      });
    }
    return;
  }
  const auto master = reader.tensor(kMaster + names_[i], sizes);
  if (masters_kind_ == Masters::kFloat) masters_[i].copy_(master);
  round_masters(master, weight, masters_kind_ == Masters::kSplit ? masters_[i] : Tensor());
}

void AdamW::load_state(const formats::SafetensorsReader& reader, int64_t num_steps) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (has_masters()) load_masters(reader, i);
    first_[i].copy_(reader.tensor("exp_avg." + names_[i], first_[i].sizes()));
    second_[i].copy_(reader.tensor("exp_avg_sq." + names_[i], second_[i].sizes()));
  }
  num_steps_ = num_steps;
}

}  // namespace draftsmith::train
