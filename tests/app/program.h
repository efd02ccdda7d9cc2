// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "draftsmith/formats/json.h"

#include "tests/support/golden.h"
#include "tests/support/process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_models.h"

namespace draftsmith::testing {

using Arguments = std::vector<std::string>;

inline Arguments operator+(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n')
    text.pop_back();
  const size_t newline = text.rfind('\n');
  return newline == std::string::npos ? text : text.substr(newline + 1);
}

/// The message has the form `what: expected X, got Y (where). Try Z.` on one line.
inline void expect_message_form(const std::string& message) {
  const size_t expected = message.find(": expected ");
  const size_t got = message.find(", got ", expected == std::string::npos ? 0 : expected);
  EXPECT_TRUE(expected != std::string::npos && expected > 0) << message;
  EXPECT_NE(got, std::string::npos) << message;
  EXPECT_EQ(message.back(), '.') << message;
}

/// Runs the program, which must refuse with this exit code and a last line of stderr that holds
/// `parts`, and must leave all files of `folder` as they were.
inline void expect_refused(
    const TempFolder& folder,
    const Arguments& arguments,
    int exit_code,
    const std::vector<std::string>& parts) {
  const auto before = snapshot(folder.path());
  const auto result = run_program(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  const std::string message = last_line(result.err);
  expect_message_form(message);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  EXPECT_TRUE(result.out.empty()) << result.out;
  EXPECT_TRUE(snapshot(folder.path()) == before) << "files of the folder changed";
}

/// Settings of a 2-layer drafter for the tiny targets, in float32.
inline Arguments tiny_settings(const std::filesystem::path& target) {
  return {"--target.path=" + target.string(), "--target.dtype=float32",
          "--drafter.dtype=float32",          "--drafter.num_layers=2",
          "--drafter.block_size=4",           "--drafter.target_layer_ids=0,2",
          "--drafter.mask_token_id=205"};
}

inline Arguments train_arguments(
    const std::filesystem::path& target,
    const std::filesystem::path& dataset,
    const std::filesystem::path& out,
    int64_t max_steps = 4) {
  return Arguments{"train"} + tiny_settings(target) +
         Arguments{
             "--data.path=" + dataset.string(), "--train.out=" + out.string(),
             "--data.max_sequences_per_batch=2", fmt::format("--train.max_steps={}", max_steps),
             "--train.log_every=1"};
}

inline std::filesystem::path write_tiny_dataset(const TempFolder& folder, int64_t count = 6) {
  std::vector<data::TokenSequence> sequences;
  for (int64_t i = 0; i < count; ++i)
    sequences.push_back(make_sequence(12 + i, 4, static_cast<uint64_t>(i)));
  return write_dataset_folder(folder, "dataset", sequences);
}

/// `input_ids` of random ids, one prompt per line.
inline std::filesystem::path
write_prompts(const TempFolder& folder, int64_t count, int64_t vocab_size = 200) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    const formats::Json line = {
        {"input_ids", make_ids(3 + i, vocab_size, static_cast<uint64_t>(i))},
        {"set", i % 2 == 0 ? "even" : "odd"}};
    text += line.dump() + "\n";
  }
  return folder.write("prompts.jsonl", text);
}

}  // namespace draftsmith::testing
