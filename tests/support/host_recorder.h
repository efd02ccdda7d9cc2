// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "draftsmith/ops/recording.h"

namespace draftsmith::testing {

/// Stands in for CUDA graphs: a replay runs the recorded work again. As there, results do
/// not outlive the next replay. Counts what is recorded in `num_recorded`, if there is one.
class HostRecorder final : public ops::Recorder {
 public:
  explicit HostRecorder(int64_t* num_recorded = nullptr) : num_recorded_(num_recorded) {}

  void rehearse(const std::function<void()>& work) override { work(); }

  std::unique_ptr<ops::Recording> record(const ops::RecordedWork& work) override {
    work();
    if (num_recorded_ != nullptr) ++*num_recorded_;
    return std::make_unique<Replay>(*this, work);
  }

 private:
  class Replay final : public ops::Recording {
   public:
    Replay(HostRecorder& recorder, ops::RecordedWork work)
        : recorder_(recorder), work_(std::move(work)) {}
    std::vector<torch::Tensor> replay() override {
      const auto results = work_();
      spoil(recorder_.last_);
      recorder_.last_.clear();
      for (const auto& result : results)
        recorder_.last_.push_back(result.defined() ? result.clone() : result);
      return recorder_.last_;
    }

   private:
    HostRecorder& recorder_;
    ops::RecordedWork work_;
  };

  static void spoil(std::vector<torch::Tensor> results) {
    const at::NoGradGuard no_grad;
    for (auto& result : results)
      if (result.defined()) result.detach().fill_(std::numeric_limits<double>::quiet_NaN());
  }

  std::vector<torch::Tensor> last_;
  int64_t* num_recorded_;
};

}  // namespace draftsmith::testing
