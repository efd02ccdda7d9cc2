// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <sstream>
#include <thread>

#include "draftsmith/base/atomic_file.h"

#include "tests/app/program.h"

namespace draftsmith::testing {

/// Training runs of the whole program on the tiny target, in one folder.
struct ProgramRuns : ::testing::Test {
  TempFolder folder;
  std::filesystem::path target = fixture("targets/qwen3-tiny");
  std::filesystem::path dataset = write_tiny_dataset(folder, 10);

  Arguments train(const std::string& name, int64_t max_steps, const Arguments& more = {}) const {
    return train_arguments(target, dataset, folder / name, max_steps) + more;
  }
  Arguments resume(const std::string& name, const Arguments& more = {}) const {
    return Arguments{"train", "--resume", "--train.out=" + (folder / name).string()} + more;
  }
  static ProcessResult expect_done(const Arguments& arguments) {
    auto result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
  std::filesystem::path checkpoint(const std::string& name, int64_t step) const {
    return folder / name / fmt::format("checkpoints/step-{}", step);
  }
  /// Weights, optimizer and cursor are the same, bit for bit.
  void expect_same_state(const std::string& left, const std::string& right, int64_t step) const {
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_TRUE(
          read_file(checkpoint(left, step) / file) == read_file(checkpoint(right, step) / file))
          << file << " of " << left << " and " << right;
    const auto state = [&](const std::string& name) {
      return formats::read_json_file(checkpoint(name, step) / "state.json");
    };
    for (const char* key : {"step", "cursor", "batches", "tokens", "best"})
      EXPECT_EQ(state(left).at(key), state(right).at(key)) << key;
  }
  std::vector<formats::Json> metrics(const std::string& name) const {
    std::vector<formats::Json> lines;
    std::istringstream stream(read_file(folder / name / "metrics.jsonl"));
    for (std::string line; std::getline(stream, line);)
      lines.push_back(formats::Json::parse(line));
    return lines;
  }
  std::vector<int64_t> logged_steps(const std::string& name) const {
    std::vector<int64_t> steps;
    for (const auto& line : metrics(name))
      steps.push_back(line.at("step"));
    return steps;
  }
  static std::vector<int64_t> count_to(int64_t last) {
    std::vector<int64_t> steps;
    for (int64_t step = 1; step <= last; ++step)
      steps.push_back(step);
    return steps;
  }
};

/// Waits until `condition` holds; a minute at most.
inline void wait_until(const std::function<bool()>& condition) {
  for (int i = 0; i < 60'000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(condition());
}

}  // namespace draftsmith::testing
