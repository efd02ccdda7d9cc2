// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/step_trace.h"

#include <exception>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "draftsmith/base/log.h"

namespace draftsmith::train {
namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;

StepTrace::StepTrace(fs::path file, int64_t steps) : file_(std::move(file)), steps_left_(steps) {
  if (steps == 0) return;
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (at::hasCUDA()) activities.insert(profiler::ActivityType::CUDA);
  torch::profiler::impl::ExperimentalConfig all_threads;
  all_threads.profile_all_threads = true;
  const profiler::ProfilerConfig config(
      profiler::ProfilerState::KINETO, /*report_input_shapes=*/false, /*profile_memory=*/false,
      /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false, all_threads);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

StepTrace::~StepTrace() {
  try {
    if (steps_left_ > 0) write();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void StepTrace::end_step() {
  if (steps_left_ > 0 && --steps_left_ == 0) write();
}

void StepTrace::write() {
  fs::path aside = file_;
  aside += ".partial";
  profiler::disableProfiler()->save(aside.string());
  std::error_code error;
  fs::rename(aside, file_, error);
  if (error) {
    log_warning(fmt::format("no trace of the steps: {} ({})", error.message(), file_.string()));
  } else {
    log_info("trace of the steps: {}; https://ui.perfetto.dev opens it", file_.string());
  }
}

}  // namespace draftsmith::train
