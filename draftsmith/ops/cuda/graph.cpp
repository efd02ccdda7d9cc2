// SPDX-License-Identifier: Apache-2.0
// In builds with CUDA; unavailable.cpp stands in elsewhere.
#include "draftsmith/ops/cuda/graph.h"

#include <mutex>
#include <utility>

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace draftsmith::ops::cuda {
namespace {

/// Giving cached memory back is refused while any thread of the process captures.
std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// The same memory, which the graph's pool owns: a result that were kept would take its memory away
/// from all graphs that are captured later, though each is used before any of them runs.
torch::Tensor view_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return torch::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().requires_grad(false));
}

class GraphRecording final : public Recording {
 public:
  std::vector<torch::Tensor> replay() override {
    graph_.replay();
    return results_;
  }

  at::cuda::CUDAGraph& graph() { return graph_; }
  void set_results(const std::vector<torch::Tensor>& results) {
    for (const auto& result : results)
      results_.push_back(view_of(result));
  }

 private:
  at::cuda::CUDAGraph graph_;
  std::vector<torch::Tensor> results_;
};

class GraphRecorder final : public Recorder {
 public:
  explicit GraphRecorder(torch::Device device)
      : device_(device),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  void rehearse(const std::function<void()>& work) override {
    const c10::cuda::CUDAGuard guard(device_);
    const auto outside = c10::cuda::getCurrentCUDAStream(device_.index());
    order(outside, stream_);
    {
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      work();
    }
    order(stream_, outside);
  }

  std::unique_ptr<Recording> record(const RecordedWork& work) override {
    const std::lock_guard lock(capture_mutex());
    const c10::cuda::CUDAGuard guard(device_);
    order(c10::cuda::getCurrentCUDAStream(device_.index()), stream_);
    // What the rehearsal left on this stream is of no use to any other.
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto recording = std::make_unique<GraphRecording>();
    auto& graph = recording->graph();
    const c10::cuda::CUDAStreamGuard on_stream(stream_);
    // Of this thread alone: targets go on allocating and copying in theirs.
    graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      recording->set_results(work());
    } catch (...) {
      end_broken(graph);
      throw;
    }
    graph.capture_end();
    return recording;
  }

 private:
  /// What follows on `after` waits for what is on `before` now.
  static void order(const c10::cuda::CUDAStream& before, const c10::cuda::CUDAStream& after) {
    at::cuda::CUDAEvent event;
    event.record(before);
    event.block(after);
  }

  /// Ends the capture of work that threw, whose error is the one to tell.
  static void end_broken(at::cuda::CUDAGraph& graph) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      return;
    }
  }

  torch::Device device_;
  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<Recorder> make_graph_recorder(torch::Device device) {
  return std::make_unique<GraphRecorder>(device);
}

}  // namespace draftsmith::ops::cuda
