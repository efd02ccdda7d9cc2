// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"

namespace draftsmith::train {

AdamW::AdamW(const Parameters& parameters, const AdamWSettings& settings)
    : settings_(settings),
      has_masters_(
          !parameters.empty() && parameters.front().second.scalar_type() != torch::kFloat) {
  for (const auto& [name, weight] : parameters) {
    names_.push_back(name);
    weights_.push_back(weight.detach());
    masters_.push_back(has_masters_ ? weight.detach().to(torch::kFloat) : weight.detach());
    gradients_.push_back(torch::zeros_like(masters_.back()));
    first_.push_back(torch::zeros_like(masters_.back()));
    second_.push_back(torch::zeros_like(masters_.back()));
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

void AdamW::step(double lr, double scale, double norm) {
  const at::NoGradGuard no_grad;
  if (settings_.clip_norm > 0) scale *= std::min(1.0, settings_.clip_norm / (norm + 1e-6));
  ++num_steps_;
  std::vector<torch::Tensor> steps;
  for (size_t i = 0; i < gradients_.size(); ++i) {
    gradients_[i].mul_(scale);
    steps.push_back(torch::full({}, static_cast<double>(num_steps_), torch::kFloat));
  }
  at::_fused_adamw_(
      masters_, gradients_, first_, second_, /*max_exp_avg_sqs=*/{}, steps, lr, settings_.beta1,
      settings_.beta2, settings_.weight_decay, settings_.eps, /*amsgrad=*/false,
      /*maximize=*/false);
  if (has_masters_)
    for (size_t i = 0; i < weights_.size(); ++i)
      weights_[i].copy_(masters_[i]);
  clear_gradients();
}

formats::NamedTensors AdamW::state() const {
  formats::NamedTensors state;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (has_masters_) state.emplace_back("master." + names_[i], masters_[i]);
    state.emplace_back("exp_avg." + names_[i], first_[i]);
    state.emplace_back("exp_avg_sq." + names_[i], second_[i]);
  }
  return state;
}

void AdamW::load_state(const formats::SafetensorsReader& reader, int64_t num_steps) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (has_masters_) {
      masters_[i].copy_(reader.tensor("master." + names_[i], masters_[i].sizes()));
      weights_[i].copy_(masters_[i]);
    }
    first_[i].copy_(reader.tensor("exp_avg." + names_[i], first_[i].sizes()));
    second_[i].copy_(reader.tensor("exp_avg_sq." + names_[i], second_[i].sizes()));
  }
  num_steps_ = num_steps;
}

}  // namespace draftsmith::train
