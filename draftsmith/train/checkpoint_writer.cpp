// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/train/checkpoint_writer.h"

#include <chrono>
#include <exception>
#include <utility>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/base/log.h"
#include "draftsmith/train/checkpoint_list.h"

namespace draftsmith::train {
namespace {

/// The state with tensors of its own, contiguous and on the host, so that the thread only writes.
TrainState copy_state(const TrainState& state) {
  const at::NoGradGuard no_grad;
  const auto copy = [](const torch::Tensor& tensor) {
    return tensor.is_cpu() ? tensor.detach().clone(at::MemoryFormat::Contiguous)
                           : tensor.detach().cpu().contiguous();
  };
  model::WeightMap weights;
  for (const auto& [name, tensor] : state.drafter.parameters())
    weights[name] = copy(tensor);
  TrainState result{
      model::Drafter(state.drafter.config(), std::move(weights)),
      {},
      state.progress,
      state.schedule,
      state.stamp};
  for (const auto& [name, tensor] : state.optimizer)
    result.optimizer.emplace_back(name, copy(tensor));
  return result;
}

void write_and_tidy(
    const std::filesystem::path& run_folder,
    const TrainState& state,
    int64_t keep_last) {
  const auto check_folder = [&] {
    if (!std::filesystem::exists(run_folder))
      fail_write(run_folder, "the run's folder was removed");
  };
  check_folder();  // made anew by a save, it would hold checkpoints and nothing else
  const int64_t step = state.progress.step;
  try {
    write_checkpoint(checkpoint_path(run_folder, step), state);
    if (state.progress.best.step == step) point_best_to(run_folder, step);
    remove_old_checkpoints(run_folder, step, keep_last);
  } catch (const std::exception&) {
    check_folder();  // whatever was missed first
    throw;
  }
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::filesystem::path run_folder, int64_t keep_last)
    : run_folder_(std::move(run_folder)), keep_last_(keep_last) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void CheckpointWriter::save(const TrainState& state) {
  wait();
  pending_ = std::async(
      std::launch::async,
      [state = copy_state(state), run_folder = run_folder_, keep_last = keep_last_] {
        write_and_tidy(run_folder, state, keep_last);
      });
}

void CheckpointWriter::check() {
  if (pending_.valid() && pending_.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
    wait();
}

void CheckpointWriter::wait() {
  if (pending_.valid()) pending_.get();
}

}  // namespace draftsmith::train
