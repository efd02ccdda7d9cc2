// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>

#include "draftsmith/pipeline/ranks.h"

namespace draftsmith::testing {

/// Runs `body` once for each of `size` ranks that are threads, and rethrows the error of the
/// lowest rank that has one, after all have ended.
inline void run_ranks(
    int64_t size,
    const std::function<void(pipeline::Ranks&)>& body,
    std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
  pipeline::Meeting meeting(timeout);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      pipeline::Ranks ranks;
      try {
        ranks = meeting.join_threads(rank, size);
        body(ranks);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
        ranks.announce_end(error.what());
      }
      ranks.leave();
    });
  }
  for (auto& thread : threads)
    thread.join();
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace draftsmith::testing
