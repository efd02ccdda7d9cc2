// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/optimizer.h"

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/ops/split_float.h"

namespace draftsmith::train {
namespace {

using torch::Tensor;

/// Parameters updated together. On the host their float32 numbers stay in a cache, and whole
/// vectors of any processor fit, so that the result does not depend on it; on a GPU a launch must
/// be worth its start.
int64_t count_together(torch::Device device) {
  return device.is_cpu() ? int64_t{1} << 20 : int64_t{1} << 24;
}

// Prefixes of tensors in a saved state.
constexpr const char* kMaster = "master.";
constexpr const char* kLowBits = "master_low.";

/// Calls `run(first, count)` for stretches of a tensor's numbers.
template <class Run>
void for_stretches(const Tensor& tensor, const Run& run) {
  const int64_t count = tensor.numel(), together = count_together(tensor.device());
  for (int64_t first = 0; first < count; first += together)
    run(first, std::min(together, count - first));
}

Tensor stretch_of(const Tensor& tensor, int64_t first, int64_t count) {
  return tensor.view(-1).narrow(0, first, count);
}

std::vector<torch::Tensor> detach_all(const AdamW::Parameters& parameters) {
  std::vector<torch::Tensor> weights;
  for (const auto& [name, weight] : parameters)
    weights.push_back(weight.detach());
  return weights;
}

}  // namespace

AdamW::AdamW(const Parameters& parameters, const AdamWSettings& settings, pipeline::Ranks ranks)
    : settings_(settings),
      ranks_(std::move(ranks)),
      weights_(detach_all(parameters)),
      gradients_(weights_, ranks_, is_sharded()) {
  if (!weights_.empty() && weights_.front().scalar_type() != torch::kFloat)
    masters_ = settings.splits_masters ? Masters::kSplit : Masters::kFloat;
  std::vector<Slice> slices;
  for (size_t i = 0; i < weights_.size(); ++i) {
    names_.push_back(parameters[i].first);
    slices.push_back({i, 0, weights_[i].numel()});
  }
  if (is_sharded()) slices = gradients_.plan().slices_of(ranks_.rank());
  for (const Slice& slice : slices) {
    Part part;
    part.slice = slice;
    part.weight = cut(weights_[slice.parameter], slice);
    DS_CHECK(part.weight.is_contiguous());
    part.master = masters_ == Masters::kSplit ? torch::zeros_like(part.weight, torch::kShort)
                                              : part.weight.to(torch::kFloat);
    part.gradient = cut(gradients_.sums()[slice.parameter], slice);
    part.first = torch::zeros_like(part.weight, torch::kFloat);
    part.second = torch::zeros_like(part.weight, torch::kFloat);
    parts_.push_back(std::move(part));
  }
}

torch::Tensor AdamW::cut(const torch::Tensor& whole, const Slice& slice) const {
  return is_sharded() ? whole.view(-1).narrow(0, slice.begin, slice.count) : whole;
}

void AdamW::accumulate(const std::vector<torch::Tensor>& gradients) {
  DS_CHECK(gradients.size() == weights_.size());
  for (size_t i = gradients.size(); i-- > 0;)
    add_gradient(i, gradients[i]);
}

void AdamW::update(const Part& part, int64_t first, int64_t count, double lr, double scale) {
  const auto weight = stretch_of(part.weight, first, count);
  const auto kept = stretch_of(part.master, first, count);
  const auto master = masters_ == Masters::kSplit ? ops::join_float(weight, kept) : kept;
  const auto steps =
      torch::full({}, static_cast<double>(num_steps_), kept.options().dtype(torch::kFloat));
  at::_fused_adamw_(
      {master}, {stretch_of(part.gradient, first, count).mul_(scale)},
      {stretch_of(part.first, first, count)}, {stretch_of(part.second, first, count)},
      /*max_exp_avg_sqs=*/{}, {steps}, lr, settings_.beta1, settings_.beta2, settings_.weight_decay,
      settings_.eps, /*amsgrad=*/false,
      /*maximize=*/false);
  if (masters_ != Masters::kNone)
    ops::split_float(master, weight, masters_ == Masters::kSplit ? kept : Tensor());
}

void AdamW::step(double lr, double scale, double norm) {
  const at::NoGradGuard no_grad;
  if (settings_.clip_norm > 0) scale *= std::min(1.0, settings_.clip_norm / (norm + 1e-6));
  ++num_steps_;
  for (const Part& part : parts_)
    for_stretches(
        part.weight, [&](int64_t first, int64_t count) { update(part, first, count, lr, scale); });
  if (is_sharded()) gather_weights();
  clear_gradients();
}

void AdamW::gather_weights() {
  const auto& plan = gradients_.plan();
  // The gradients were used: their memory carries the weights, which take no more.
  std::vector<torch::Tensor> carriers;
  for (const auto& bucket : gradients_.buckets())
    carriers.push_back(bucket.view(weights_.front().scalar_type()).narrow(0, 0, bucket.numel()));
  const auto in_carrier = [&](const Slice& slice) {
    const auto& place = plan.places[slice.parameter];
    return carriers[place.bucket].narrow(0, place.begin + slice.begin, slice.count);
  };
  for (const Part& part : parts_)
    in_carrier(part.slice).copy_(part.weight);
  for (const auto& carrier : carriers)
    ranks_.all_gather(carrier);
  for (size_t i = 0; i < weights_.size(); ++i)
    weights_[i].view(-1).copy_(in_carrier({i, 0, weights_[i].numel()}));
}

std::vector<torch::Tensor> AdamW::gather(torch::Tensor Part::*member) const {
  std::vector<torch::Tensor> whole;
  if (!is_sharded()) {
    for (const Part& part : parts_)
      whole.push_back(part.*member);
    return whole;
  }
  const auto& plan = gradients_.plan();
  const auto dtype =
      member == &Part::master && masters_ == Masters::kSplit ? torch::kShort : torch::kFloat;
  for (const auto& weight : weights_)
    whole.push_back(
        ranks_.is_first() ? torch::empty(weight.sizes(), weight.options().dtype(dtype))
                          : torch::Tensor());
  for (size_t b = 0; b < plan.sizes.size(); ++b) {
    const auto carrier = torch::zeros_like(gradients_.buckets()[b]);
    for (const Part& part : parts_) {
      const auto& place = plan.places[part.slice.parameter];
      if (place.bucket == b)
        carrier.narrow(0, place.begin + part.slice.begin, part.slice.count).copy_(part.*member);
    }
    ranks_.all_gather(carrier);
    for (size_t i = 0; i < weights_.size(); ++i) {
      const auto& place = plan.places[i];
      if (place.bucket == b && whole[i].defined())
        whole[i].view(-1).copy_(carrier.narrow(0, place.begin, place.count));
    }
  }
  return whole;
}

formats::NamedTensors AdamW::state() const {
  const at::NoGradGuard no_grad;
  std::vector<torch::Tensor> masters;
  if (has_masters()) masters = gather(&Part::master);
  const auto first = gather(&Part::first);
  const auto second = gather(&Part::second);
  formats::NamedTensors state;
  if (!ranks_.is_first()) return state;
  const char* prefix = masters_ == Masters::kSplit ? kLowBits : kMaster;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (has_masters()) state.emplace_back(prefix + names_[i], masters[i]);
    state.emplace_back("exp_avg." + names_[i], first[i]);
    state.emplace_back("exp_avg_sq." + names_[i], second[i]);
  }
  return state;
}

void AdamW::load_split_master(const torch::Tensor& low, const Part& part) {
  if (masters_ == Masters::kSplit) {
    part.master.copy_(low);
    return;
  }
  for_stretches(part.weight, [&](int64_t first, int64_t count) {
    stretch_of(part.master, first, count)
        .copy_(
            ops::join_float(stretch_of(part.weight, first, count), stretch_of(low, first, count)));
  });
}

void AdamW::load_state(const formats::SafetensorsReader& reader, int64_t num_steps) {
  const at::NoGradGuard no_grad;
  bool was_split = false;
  for (Part& part : parts_) {
    const size_t i = part.slice.parameter;
    const auto read = [&](const char* kind, torch::ScalarType dtype = torch::kFloat) {
      const auto whole = reader.tensor(kind + names_[i], weights_[i].sizes());
      return cut(whole.contiguous(), part.slice).to(part.weight.device(), dtype);
    };
    was_split = has_masters() && reader.has(kLowBits + names_[i]);
    if (was_split) {
      load_split_master(read(kLowBits, torch::kShort), part);
    } else if (masters_ == Masters::kFloat) {
      part.master.copy_(read(kMaster));
    } else if (masters_ == Masters::kSplit) {
      const auto master = read(kMaster);
      for_stretches(part.weight, [&](int64_t first, int64_t count) {
        ops::split_float(
            stretch_of(master, first, count), stretch_of(part.weight, first, count),
            stretch_of(part.master, first, count));
      });
    }
    part.first.copy_(read("exp_avg."));
    part.second.copy_(read("exp_avg_sq."));
  }
  if (masters_ == Masters::kFloat && !was_split) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      const auto master = reader.tensor(kMaster + names_[i], weights_[i].sizes())
                              .to(weights_[i].device(), torch::kFloat);
      for_stretches(weights_[i], [&](int64_t first, int64_t count) {
        ops::split_float(
            stretch_of(master, first, count), stretch_of(weights_[i], first, count), {});
      });
    }
  }
  num_steps_ = num_steps;
}

}  // namespace draftsmith::train
