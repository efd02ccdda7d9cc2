// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/batch_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/base/progress.h"
#include "draftsmith/base/random.h"
#include "draftsmith/data/length_buckets.h"

namespace draftsmith::data {

namespace {

bool is_held_out(int64_t number, const DataSettings& settings) {
  constexpr uint64_t kStream = 0x68656c64;  // apart from the order's and the anchors' keys
  const uint64_t key =
      hash_key({static_cast<uint64_t>(settings.seed), kStream, static_cast<uint64_t>(number)});
  return static_cast<double>(key >> 11) * 0x1p-53 < settings.held_out;
}

}  // namespace

BatchSource::BatchSource(
    TokenDataset dataset,
    const DataSettings& settings,
    int64_t vocab_size,
    Part part)
    : dataset_(std::move(dataset)), settings_(settings) {
  Progress progress("reading dataset", dataset_.num_sequences(), "sequences");
  for (int64_t i = 0; i < dataset_.num_sequences(); ++i) {
    ++report_.read;
    const auto full = dataset_.sequence(i);
    check_token_ids(full.ids, vocab_size, fmt::format("{}, row {}", dataset_.folder().string(), i));
    const auto length = static_cast<int64_t>(full.ids.size());
    const int64_t kept = std::min(length, settings_.max_length);
    const bool is_skipped_long = settings_.overlong == "skip" && length > settings_.max_length;
    const std::vector<uint8_t> mask(full.mask.begin(), full.mask.begin() + kept);
    if (is_held_out(i, settings_) != (part == Part::kHeldOut)) {
      ++report_.other_part;
    } else if (is_skipped_long || kept > settings_.tokens_per_batch) {
      ++report_.too_long;
    } else if (!has_eligible_anchor(mask)) {
      ++report_.no_anchor;
    } else {
      report_.cut += kept < length ? 1 : 0;
      numbers_.push_back(i);
      lengths_.push_back(kept);
    }
    progress.update(i + 1);
  }
  report_.trained = static_cast<int64_t>(numbers_.size());
  if (numbers_.empty()) {
    throw DataError(
        {.what = "dataset",
         .expected = "a sequence with two supervised tokens in a row",
         .got = fmt::format(
             "{} sequences, of which {} too long, {} without such tokens and {} {}", report_.read,
             report_.too_long, report_.no_anchor, report_.other_part,
             part == Part::kHeldOut ? "not held out" : "held out"),
         .where = dataset_.folder().string(),
         .hint = "a larger data.tokens_per_batch or data.max_length, or check the loss mask"});
  }
}

void BatchSource::log_summary() const {
  log_info(
      "{}: {} samples loaded (Arrow-backed, lazy access)", dataset_.folder().string(),
      report_.read);
  log_info(
      "sequences: {} read = {} trained + {} too long + {} without trainable tokens + {} held out; "
      "{} cut to {} tokens",
      report_.read, report_.trained, report_.too_long, report_.no_anchor, report_.other_part,
      report_.cut, settings_.max_length);
  const auto batches = plan_epoch(
      lengths_,
      {settings_.tokens_per_batch, settings_.max_sequences_per_batch, settings_.num_buckets},
      static_cast<uint64_t>(settings_.seed), 0);
  const auto [smallest, largest] = std::minmax_element(
      batches.begin(), batches.end(),
      [](const auto& left, const auto& right) { return left.size() < right.size(); });
  log_info(
      "Batches per epoch: {} (min={} max={} avg={:.1f}), {:.1f} % padding", batches.size(),
      smallest->size(), largest->size(),
      static_cast<double>(lengths_.size()) / static_cast<double>(batches.size()),
      100 * padding_share(lengths_, batches));
}

void BatchSource::plan(int64_t epoch) {
  if (planned_epoch_ == epoch) return;
  batches_ = plan_epoch(
      lengths_,
      {settings_.tokens_per_batch, settings_.max_sequences_per_batch, settings_.num_buckets},
      static_cast<uint64_t>(settings_.seed), static_cast<uint64_t>(epoch));
  planned_epoch_ = epoch;
}

int64_t BatchSource::batches_of_epoch(int64_t epoch) {
  plan(epoch);
  return static_cast<int64_t>(batches_.size());
}

TokenSequence BatchSource::read_sequence(int64_t number) const {
  auto sequence = dataset_.sequence(number);
  const auto length = std::min(sequence.ids.size(), static_cast<size_t>(settings_.max_length));
  sequence.ids.resize(length);
  sequence.mask.resize(length);
  return sequence;
}

SourceBatch BatchSource::read(DataCursor cursor, const BlockRule& rule) {
  while (cursor.batch >= batches_of_epoch(cursor.epoch))
    cursor = {cursor.epoch + 1, 0};
  std::vector<int64_t> numbers;
  std::vector<TokenSequence> sequences;
  for (const int64_t index : batches_[static_cast<size_t>(cursor.batch)]) {
    numbers.push_back(numbers_[static_cast<size_t>(index)]);
    sequences.push_back(read_sequence(numbers.back()));
  }
  SourceBatch batch;
  batch.tokens = pad_sequences(sequences, std::move(numbers));
  const BlockRows rows{batch.tokens.ids, batch.tokens.mask, {}};
  const AnchorRule anchors{
      settings_.num_anchors, settings_.anchors_per_sequence, static_cast<uint64_t>(settings_.seed),
      static_cast<uint64_t>(cursor.epoch)};
  batch.blocks =
      make_draft_blocks(rows, choose_anchors(rows, batch.tokens.sequences, anchors), rule);
  batch.at = cursor;
  batch.next = {cursor.epoch, cursor.batch + 1};
  return batch;
}

}  // namespace draftsmith::data
