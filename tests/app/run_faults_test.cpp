// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "draftsmith/formats/safetensors.h"
#include "draftsmith/ops/split_float.h"

#include "tests/app/tiny_program_run.h"

/// Faults that other trainers had, as runs of the whole program.
namespace draftsmith::app {
namespace {

namespace fs = std::filesystem;
using testing::operator+;
using testing::Arguments;
using testing::relative_difference;

struct RunFaults : testing::ProgramRuns {
  formats::SafetensorsReader tensors(const std::string& name, int64_t step) const {
    return formats::SafetensorsReader::open_file(checkpoint(name, step) / "optimizer.safetensors");
  }
};

TEST_F(RunFaults, F06TheGradientDoesNotDependOnHowSequencesAreCutIntoBatches) {
  std::vector<data::TokenSequence> sequences;
  for (const int64_t supervised : {3, 7, 20, 2})
    sequences.push_back(
        testing::make_sequence(64, 64 - supervised, static_cast<uint64_t>(supervised)));
  dataset = testing::write_dataset_folder(folder, "uneven", sequences);
  // A drafter that has learned some of it, so that its first choice is right here and there.
  expect_done(train("learned", 40, {"--train.lr=0.01", "--data.max_sequences_per_batch=4"}));
  const std::string init = "--drafter.init=" + (folder / "learned/export").string();
  const std::pair<const char*, Arguments> cuts[] = {
      {"4", {"--data.max_sequences_per_batch=4", "--train.accumulation=1"}},
      {"3+1", {"--data.max_sequences_per_batch=3", "--train.accumulation=2"}},
      {"1+1+1+1", {"--data.max_sequences_per_batch=1", "--train.accumulation=4"}}};
  for (const auto& [name, cut] : cuts)
    expect_done(train(name, 1, cut + Arguments{"--loss.decay_gamma=7", init}));
  const double loss = metrics("4").at(0).at("loss");
  for (const char* term : {"ce", "kl", "cap"})
    EXPECT_GT(metrics("4").at(0).at(term).get<double>(), 0.01) << term;
  const auto whole = tensors("4", 1);
  for (const char* name : {"3+1", "1+1+1+1"}) {
    EXPECT_NEAR(metrics(name).at(0).at("loss").get<double>(), loss, 1e-5 * loss) << name;
    const auto parts = tensors(name, 1);
    for (const std::string& tensor : whole.names()) {
      if (tensor.rfind("exp_avg.", 0) != 0) continue;  // after one step a multiple of the gradient
      EXPECT_LE(relative_difference(parts.tensor(tensor), whole.tensor(tensor)), 1e-5)
          << name << " " << tensor;
    }
  }
}

TEST_F(RunFaults, F09SequencesWithoutTrainableTokensChangeNothingButTheCounts) {
  auto only = [](std::vector<int64_t> places) {
    auto sequence = testing::make_sequence(40, 40, 2);
    for (const int64_t place : places)
      sequence.mask[static_cast<size_t>(place)] = 1;
    return sequence;
  };
  const auto whole = testing::make_sequence(20, 4, 1);
  const auto train_on = [&](const std::string& name,
                            const std::vector<data::TokenSequence>& sequences,
                            const std::string& max_length) {
    dataset = testing::write_dataset_folder(folder, "data-" + name, sequences);
    return expect_done(train(name, 3, {"--data.max_length=" + max_length})).err;
  };
  train_on("alone", {whole}, "40");
  const std::vector<data::TokenSequence> sequences = {whole,      testing::make_sequence(40, 30, 3),
                                                      only({}),   only({0}),
                                                      only({39}), data::TokenSequence{}};
  for (const char* max_length : {"31", "24"}) {
    const std::string name = fmt::format("cut-{}", max_length);
    const auto said = train_on(name, sequences, max_length);
    EXPECT_NE(
        said.find("6 read = 1 trained + 0 held out + 0 too long + 5 without"), std::string::npos)
        << said;
    expect_same_state(name, "alone", 3);
  }
  const auto said = train_on("cut-32", sequences, "32");  // token 31 is a label
  EXPECT_NE(
      said.find("6 read = 2 trained + 0 held out + 0 too long + 4 without"), std::string::npos)
      << said;
  EXPECT_NE(
      read_file(checkpoint("cut-32", 3) / "model.safetensors"),
      read_file(checkpoint("alone", 3) / "model.safetensors"));
}

TEST_F(RunFaults, F10AResumedRunGoesOnInTheMiddleOfItsEpoch) {
  for (const int64_t accumulation : {1, 2}) {
    const std::string whole = fmt::format("whole-{}", accumulation);
    const std::string rest = fmt::format("rest-{}", accumulation);
    const int64_t stop = 8 / accumulation;
    const int64_t last = (15 + accumulation - 1) / accumulation;
    expect_done(train(
        whole, 0,
        {"--train.epochs=3", "--data.seed=1", fmt::format("--train.accumulation={}", accumulation),
         fmt::format("--train.save_every={}", stop), "--train.keep_last=9"}));
    fs::create_directories(checkpoint(rest, stop).parent_path());
    fs::copy(checkpoint(whole, stop), checkpoint(rest, stop));
    fs::copy_file(folder / whole / "settings.toml", folder / rest / "settings.toml");
    expect_done(resume(rest));
    expect_same_state(rest, whole, last);
    const auto expected = metrics(whole);
    const auto lines = metrics(rest);
    ASSERT_EQ(lines.size(), static_cast<size_t>(last - stop));
    for (size_t i = 0; i < lines.size(); ++i)
      for (const char* key : {"step", "loss", "grad_norm", "lr"})
        EXPECT_EQ(lines[i].at(key), expected[i + static_cast<size_t>(stop)].at(key)) << key;
  }
}

TEST_F(RunFaults, F11ADamagedCheckpointIsPassedOverAndTheFormerOneUsed) {
  const Arguments settings = {"--train.save_every=2", "--train.keep_last=9"};
  expect_done(train("whole", 8, settings));
  const std::function<void(const fs::path&)> damages[] = {
      [](const fs::path& at) { fs::resize_file(at / "model.safetensors", 1000); },
      [](const fs::path& at) { fs::remove(at / "manifest.json"); },
      [](const fs::path& at) {
        std::string bytes = read_file(at / "optimizer.safetensors");
        bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 16);
        write_file_atomically(at / "optimizer.safetensors", bytes);
      }};
  int number = 0;
  for (const auto& damage : damages) {
    const std::string name = fmt::format("damaged-{}", ++number);
    fs::copy(folder / "whole", folder / name, fs::copy_options::recursive);
    fs::remove_all(checkpoint(name, 8));
    damage(checkpoint(name, 6));
    // What a killed save leaves, and a half folder with the next step's very name.
    folder.write(name + "/checkpoints/.step-6.partial/model.safetensors", "half");
    folder.write(name + "/checkpoints/step-8/model.safetensors", "half");
    const std::string former = read_file(checkpoint(name, 4) / "optimizer.safetensors");
    const auto result = expect_done(resume(name));
    for (const char* part : {"step-8 is no complete", "step-6 is no complete", "at step 4"})
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " in: " << result.err;
    EXPECT_TRUE(read_file(checkpoint(name, 4) / "optimizer.safetensors") == former);
    expect_same_state(name, "whole", 6);
    expect_same_state(name, "whole", 8);
    EXPECT_FALSE(fs::exists(folder / name / "checkpoints/.step-6.partial"));
    EXPECT_EQ(logged_steps(name), count_to(8));
  }
}

TEST_F(RunFaults, F11ADiskThatIsFullEndsTheRunAndKeepsTheFormerCheckpoint) {
  // A file in the way of the folder stands for a disk that takes no more, not even of the log.
  expect_done(train("run", 2));
  const auto before = testing::snapshot(checkpoint("run", 2));
  fs::rename(folder / "run/checkpoints", folder / "run/kept");
  folder.write("run/checkpoints", "no folder");
  fs::remove(folder / "run/log.txt");
  fs::create_symlink("/dev/full", folder / "run/log.txt");
  const auto result = testing::run_program(resume("run", {"--train.max_steps=4"}));
  EXPECT_EQ(result.exit_code, 5) << result.err;
  testing::expect_message_form(testing::last_line(result.err));
  EXPECT_NE(result.err.find("the log misses lines"), std::string::npos) << result.err;
  fs::remove(folder / "run/log.txt");
  fs::remove(folder / "run/checkpoints");
  fs::rename(folder / "run/kept", folder / "run/checkpoints");
  EXPECT_TRUE(testing::snapshot(checkpoint("run", 2)) == before);
  expect_done(resume("run", {"--train.max_steps=4"}));
  EXPECT_TRUE(fs::exists(checkpoint("run", 4)));
}

TEST_F(RunFaults, F11AFileThatMayNotGrowEndsTheRunAndKeepsTheFormerCheckpoint) {
  expect_done(train("run", 2));
  const auto before = testing::snapshot(checkpoint("run", 2));
  const auto more = resume("run", {"--train.max_steps=4"});
  // Less than the weights take, more than settings and logs do.
  ASSERT_GT(fs::file_size(checkpoint("run", 2) / "model.safetensors"), 100'000U);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // the write fails, as on a full disk
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto result = testing::run_program(more);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(result.exit_code, 5) << result.err;
  const auto message = testing::last_line(result.err);
  testing::expect_message_form(message);
  EXPECT_NE(message.find(".safetensors"), std::string::npos) << message;
  EXPECT_TRUE(testing::snapshot(checkpoint("run", 2)) == before);
  EXPECT_FALSE(fs::exists(checkpoint("run", 4)));
  expect_done(more);
  EXPECT_TRUE(fs::exists(checkpoint("run", 4)));
}

TEST_F(RunFaults, F11AFolderThatIsRemovedEndsTheRun) {
  // With a line after every step, with a checkpoint after every step: either is missed at once.
  for (const Arguments& settings :
       {Arguments{"--train.save_every=1000000"},
        Arguments{"--train.log_every=1000000", "--train.save_every=1"}}) {
    const fs::path run = folder / "run";
    testing::RunningProgram program(train("run", 1'000'000, settings));
    testing::wait_until([&] { return fs::exists(run / "log.txt"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::rename(run, folder / "elsewhere");
    const auto result = program.wait();
    EXPECT_EQ(result.exit_code, 5) << result.err;
    const auto message = testing::last_line(result.err);
    testing::expect_message_form(message);
    EXPECT_NE(message.find(run.string()), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(run));
    fs::remove_all(folder / "elsewhere");
  }
}

TEST_F(RunFaults, F18UpdatesTooSmallForBfloat16AddUpInTheMasters) {
  const Arguments settings = {
      "--drafter.dtype=bfloat16", "--train.schedule=constant", "--train.warmup=0",
      "--train.clip_norm=0"};
  expect_done(train("still", 1, settings + Arguments{"--train.lr=0"}));
  expect_done(train("slow", 20, settings + Arguments{"--train.lr=1e-6"}));
  const auto start = tensors("still", 1);
  const auto end = tensors("slow", 20);
  const auto weights = formats::SafetensorsReader::open_folder(checkpoint("slow", 20));
  double moved = 0;
  double unseen = 0;
  double count = 0;
  for (const std::string& name : start.names()) {
    if (name.rfind("master.", 0) != 0) continue;
    const auto master = end.tensor(name);
    const auto change = (master - start.tensor(name)).abs();
    EXPECT_LE(change.max().item<double>(), 20 * 3e-6) << name;
    const auto weight = weights.tensor(name.substr(7));
    auto rounded = torch::empty_like(weight);
    ops::split_float(master, rounded, {});
    EXPECT_TRUE(weight.equal(rounded)) << name;
    const auto is_same = weight.eq(start.tensor(name).to(torch::kBFloat16));
    moved += (change > 1e-6).sum().item<double>();
    unseen += is_same.logical_and(change > 1e-6).sum().item<double>();
    count += static_cast<double>(change.numel());
  }
  // Most masters moved by more than a single update, and most of that does not show yet.
  EXPECT_GT(moved / count, 0.5);
  EXPECT_GT(unseen / count, 0.25);
}

}  // namespace
}  // namespace draftsmith::app
