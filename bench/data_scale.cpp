// SPDX-License-Identifier: Apache-2.0
// Opens, plans and reads a dataset of the size that people train on, and prints what that costs.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "draftsmith/base/error.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/stopwatch.h"
#include "draftsmith/data/batch_source.h"
#include "draftsmith/data/dataset_writer.h"
#include "draftsmith/data/length_buckets.h"

namespace {

namespace fs = std::filesystem;
using draftsmith::Stopwatch;
using namespace draftsmith::data;

constexpr int64_t kVocabulary = 151936;
constexpr int kTimedBatches = 200;
constexpr int kBatchesOverTheEnd = 6;
constexpr double kStepSeconds = 2;  // 49,152 tokens through target and drafter take longer

/// Bytes of the process that are not pages of mapped files.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  return 0;
}

/// Notes the most memory that is used while it lives.
class PeakWatch {
 public:
  PeakWatch() : before_(anonymous_bytes()), thread_([this] { run(); }) {}
  ~PeakWatch() {
    is_done_ = true;
    thread_.join();
  }
  double peak_mib() const {
    const int64_t peak = std::max(peak_.load(), anonymous_bytes());
    return static_cast<double>(peak - before_) / (1 << 20);
  }

 private:
  void run() {
    while (!is_done_) {
      peak_ = std::max(peak_.load(), anonymous_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  int64_t before_;
  std::atomic<int64_t> peak_ = 0;
  std::atomic<bool> is_done_ = false;
  std::thread thread_;
};

/// Log-normal with median 1,600 tokens, clipped to 200 .. 8,192: mean about 2,000. The prompt, a
/// tenth to a half of a sequence, is not supervised.
void write(const fs::path& folder, int64_t count) {
  std::mt19937_64 generator(1);
  std::normal_distribution<double> normal(std::log(1600.0), 0.7);
  DatasetWriter writer(folder);
  draftsmith::Progress progress("writing", count, "sequences");
  TokenSequence sequence;
  for (int64_t i = 0; i < count; ++i) {
    const double drawn = std::clamp(std::exp(normal(generator)), 200.0, 8192.0);
    const auto length = static_cast<size_t>(drawn);
    sequence.ids.resize(length);
    sequence.mask.assign(length, 1);
    uint64_t state = generator();
    for (auto& id : sequence.ids) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      id = static_cast<int64_t>((state >> 33) % kVocabulary);
    }
    std::fill_n(sequence.mask.begin(), length / (2 + state % 9), uint8_t{0});
    writer.add(sequence);
    progress.update(i + 1);
  }
  writer.finish();
  progress.finish();
}

void print_row(const std::string& what, double seconds, double mib) {
  fmt::print("| {:<44} | {:>9.3f} s | {:>7.0f} MiB |\n", what, seconds, mib);
  std::fflush(stdout);
}

/// Reads on over the end of the second epoch as training does, with read-ahead and a step after each
/// batch, in which the trainer asks where it stands. The third epoch is planned meanwhile.
void measure_end_of_epoch(BatchSource& source, const BlockRule& rule, const PeakWatch& memory) {
  const auto trainer = source.share();
  DataCursor cursor = source.read({1, source.batches_of_epoch(1) - 4}, rule).next;
  double longest_read = 0;
  double longest_question = 0;
  Stopwatch watch;
  for (int i = 0; i < kBatchesOverTheEnd; ++i) {
    watch.restart();
    cursor = source.read(cursor, rule).next;
    longest_read = std::max(longest_read, watch.restart());
    for (const Stopwatch step; step.seconds() < kStepSeconds;) {
      watch.restart();
      trainer.advance(cursor, 1);
      longest_question = std::max(longest_question, watch.restart());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  print_row("a batch, worst of 6 over the end of an epoch", longest_read, memory.peak_mib());
  print_row("the trainer's place, worst meanwhile", longest_question, memory.peak_mib());
}

/// Opens the dataset and reads batches, with a row for each part.
void measure(const fs::path& folder, const std::string& batching, const std::string& opening) {
  DataSettings settings;
  settings.path = folder.string();
  settings.batching = batching;
  const PeakWatch memory;
  Stopwatch watch;
  auto source = BatchSource::open(settings, kVocabulary, "");
  const double open_seconds = watch.restart();
  print_row(opening, open_seconds, memory.peak_mib());
  for (const auto& line : source.describe())
    fmt::print(stderr, "{}\n", line);
  const double plan_seconds = watch.restart();
  print_row("plan, with the lines of the start", plan_seconds, memory.peak_mib());
  source.save_index();

  const BlockRule rule{16, kVocabulary - 1, 10};
  watch.restart();
  DataCursor cursor = source.read({}, rule).next;
  print_row("first batch", watch.restart(), memory.peak_mib());
  double worst = 0;
  const Stopwatch all;
  for (int i = 0; i < kTimedBatches; ++i) {
    watch.restart();
    cursor = source.read(cursor, rule).next;
    worst = std::max(worst, watch.restart());
  }
  print_row("a batch, mean of 200", all.seconds() / kTimedBatches, memory.peak_mib());
  print_row("a batch, worst of 200", worst, memory.peak_mib());
  watch.restart();
  source.read({1, 0}, rule);
  print_row("first batch of the next epoch, not prefetched", watch.restart(), memory.peak_mib());
  measure_end_of_epoch(source, rule, memory);
}

}  // namespace

int main(int argc, char** argv) {
  int64_t count = 902087;
  if (argc < 2 || argc > 3 ||
      (argc == 3 &&
       std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), count).ec != std::errc())) {
    fmt::print(
        stderr,
        "data_scale FOLDER [SEQUENCES]\n\nWrites a dataset of 902087 sequences (9 GB) to FOLDER "
        "unless it is there, opens it without and\nwith its index, and prints time and memory "
        "beyond the mapped files.\n");
    return 2;
  }
  try {
    const fs::path folder = argv[1];
    if (!fs::exists(folder / "state.json")) write(folder, count);
    fs::remove(folder / "draftsmith-index.bin");
    fmt::print(
        "| {:<44} | {:>11} | {:>11} |\n|---|---|---|\n", "batching = bucket", "time", "memory");
    measure(folder, "bucket", "first open, one pass over the dataset");
    measure(folder, "bucket", "open with the index");
    measure(folder, "pack", "open with the index, batching = pack");
  } catch (const draftsmith::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
  return 0;
}
