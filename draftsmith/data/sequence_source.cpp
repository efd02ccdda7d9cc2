// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/sequence_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "draftsmith/base/error.h"
#include "draftsmith/base/random.h"
#include "draftsmith/data/length_buckets.h"
#include "draftsmith/data/row_packing.h"

namespace draftsmith::data {
namespace {

constexpr size_t kKeptPlans = 2;            // the epoch that is trained and the next one
constexpr uint64_t kHeldOutPurpose = 0x68;  // keeps this draw apart from others of the seed

/// Finds and names the first id outside the vocabulary; there is one.
void fail_ids(const TokenDataset& dataset, int64_t vocab_size) {
  for (int64_t i = 0; i < dataset.num_sequences(); ++i)
    check_token_ids(
        dataset.sequence(i).ids, vocab_size,
        fmt::format("{}, row {}", dataset.folder().string(), i));
}

}  // namespace

DataReport& DataReport::operator+=(const DataReport& other) {
  read += other.read;
  trained += other.trained;
  held_out += other.held_out;
  cut += other.cut;
  windowed += other.windowed;
  too_long += other.too_long;
  no_anchor += other.no_anchor;
  bare_windows += other.bare_windows;
  return *this;
}

SequenceSource::SequenceSource(
    std::shared_ptr<const TokenDataset> dataset,
    const SequenceIndex& index,
    const DataSettings& settings,
    int64_t vocab_size)
    : dataset_(std::move(dataset)), settings_(settings), vocab_size_(vocab_size) {
  if (index.smallest_id < 0 || index.largest_id >= vocab_size) fail_ids(*dataset_, vocab_size);
  collect_pieces(index);
  if (pieces_.empty()) {
    throw DataError(
        {.what = "dataset",
         .expected = "a sequence with two supervised tokens in a row",
         .got = fmt::format(
             "{} sequences, of which {} too long and {} without such tokens", report_.read,
             report_.too_long, report_.no_anchor),
         .where = dataset_->folder().string(),
         .hint = "a larger data.tokens_per_batch or data.max_length, or check the loss mask"});
  }
  split_held_out();
}

SequenceSource::SequenceSource(const SequenceSource& other, std::vector<Piece> pieces)
    : dataset_(other.dataset_),
      settings_(other.settings_),
      vocab_size_(other.vocab_size_),
      pieces_(std::move(pieces)) {
  report_.read = report_.trained = other.report_.held_out;
}

std::unique_ptr<SequenceSource> SequenceSource::held_out() const {
  if (held_out_.empty()) return nullptr;
  return std::unique_ptr<SequenceSource>(new SequenceSource(*this, held_out_));
}

void SequenceSource::collect_pieces(const SequenceIndex& index) {
  report_.read = static_cast<int64_t>(index.lengths.size());
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    const int64_t length = index.lengths[i];
    const int64_t kept = std::min(length, settings_.max_length);
    const bool is_overlong = kept < length;
    if ((is_overlong && settings_.overlong == "skip") || kept > settings_.tokens_per_batch) {
      ++report_.too_long;
      continue;
    }
    const bool has_windows = is_overlong && settings_.overlong == "window";
    const size_t before = pieces_.size();
    int64_t left_out = 0;
    if (index.first_anchors[i] == SequenceIndex::kNoAnchor) {
      // nothing to train
    } else if (has_windows) {
      left_out = add_windows(static_cast<int64_t>(i), length);
    } else if (index.first_anchors[i] + 1 < kept) {
      pieces_.push_back({static_cast<int64_t>(i), 0, static_cast<uint32_t>(kept)});
    }
    const bool is_trained = pieces_.size() > before;
    report_.trained += is_trained ? 1 : 0;
    report_.no_anchor += is_trained ? 0 : 1;
    report_.windowed += is_trained && has_windows ? 1 : 0;
    report_.bare_windows += is_trained ? left_out : 0;
    report_.cut += is_trained && is_overlong && !has_windows ? 1 : 0;
  }
}

/// Windows without a place for a block are left out, and counted here; all tokens of the others are
/// trained.
int64_t SequenceSource::add_windows(int64_t sequence, int64_t length) {
  const auto mask = dataset_->sequence(sequence).mask;
  int64_t left_out = 0;
  for (int64_t begin = 0; begin < length; begin += settings_.max_length) {
    const int64_t end = std::min(begin + settings_.max_length, length);
    const std::vector<uint8_t> part(mask.begin() + begin, mask.begin() + end);
    if (find_first_anchor(part) < 0) {
      ++left_out;
      continue;
    }
    pieces_.push_back({sequence, static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin)});
  }
  return left_out;
}

void SequenceSource::split_held_out() {
  if (settings_.held_out == 0) return;
  const auto share = static_cast<double>(report_.trained) * settings_.held_out;
  const auto count = std::max<int64_t>(1, std::llround(share));
  if (count >= report_.trained) {
    throw DataError(
        {.what = "data.held_out",
         .expected = "to leave a sequence to train",
         .got = fmt::format("{} of {} sequences kept", count, report_.trained),
         .where = dataset_->folder().string(),
         .hint = "a smaller share or more sequences"});
  }
  const auto key = [&](const Piece& piece) {
    const auto seed = static_cast<uint64_t>(settings_.seed);
    return hash_key({seed, kHeldOutPurpose, static_cast<uint64_t>(piece.sequence)});
  };
  std::vector<uint64_t> keys;  // of sequences: all windows of one are on the same side
  for (size_t i = 0; i < pieces_.size(); ++i)
    if (i == 0 || pieces_[i].sequence != pieces_[i - 1].sequence) keys.push_back(key(pieces_[i]));
  std::nth_element(keys.begin(), keys.begin() + count, keys.end());
  const uint64_t limit = keys[static_cast<size_t>(count)];
  const auto middle = std::stable_partition(
      pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return key(piece) >= limit; });
  held_out_.assign(middle, pieces_.end());
  pieces_.erase(middle, pieces_.end());
  report_.held_out = count;
  report_.trained -= count;
}

std::vector<int64_t> SequenceSource::row_lengths(const EpochPlan& plan) const {
  std::vector<int64_t> lengths;
  if (plan.rows.empty()) {
    for (const Piece& piece : pieces_)
      lengths.push_back(piece.length);
    return lengths;
  }
  for (const auto& row : plan.rows) {
    lengths.push_back(0);
    for (const int64_t piece : row)
      lengths.back() += pieces_[static_cast<size_t>(piece)].length;
  }
  return lengths;
}

int64_t SequenceSource::most_batch_tokens() const {
  const auto lengths = row_lengths(*plan(0));
  const int64_t rows =
      std::min(settings_.max_sequences_per_batch, static_cast<int64_t>(lengths.size()));
  return std::min(
      settings_.tokens_per_batch, rows * *std::max_element(lengths.begin(), lengths.end()));
}

std::vector<int64_t> SequenceSource::batch_tokens() const {
  const auto plan = this->plan(0);
  const auto lengths = row_lengths(*plan);
  std::vector<int64_t> tokens;
  for (const auto& rows : plan->batches) {
    int64_t longest = 0;
    for (const int64_t row : rows)
      longest = std::max(longest, lengths[static_cast<size_t>(row)]);
    tokens.push_back(longest * static_cast<int64_t>(rows.size()));
  }
  return tokens;
}

EpochPlan SequenceSource::make_plan(int64_t epoch) const {
  const auto seed = static_cast<uint64_t>(settings_.seed);
  const BatchLimits limits{
      settings_.tokens_per_batch, settings_.max_sequences_per_batch, settings_.num_buckets};
  EpochPlan plan;
  if (settings_.batching == "pack") {
    const int64_t capacity = std::min(settings_.max_length, settings_.tokens_per_batch);
    plan.rows = pack_rows(
        row_lengths({}), {capacity, settings_.tokens_per_batch}, seed,
        static_cast<uint64_t>(epoch));
  }
  plan.batches = plan_epoch(row_lengths(plan), limits, seed, static_cast<uint64_t>(epoch));
  return plan;
}

std::shared_ptr<const EpochPlan> SequenceSource::find_plan(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, plan] : plans_)
    if (number == epoch) return plan;
  return nullptr;
}

std::shared_ptr<const EpochPlan> SequenceSource::plan(int64_t epoch) const {
  if (auto known = find_plan(epoch)) return known;
  // A plan of a million sequences takes half a second: those who read another epoch do not wait.
  const std::lock_guard planning(planning_);
  if (auto known = find_plan(epoch)) return known;
  auto plan = std::make_shared<const EpochPlan>(make_plan(epoch));
  const std::lock_guard lock(mutex_);
  batch_counts_[epoch] = static_cast<int64_t>(plan->batches.size());
  if (plans_.size() == kKeptPlans) plans_.erase(plans_.begin());
  plans_.emplace_back(epoch, plan);
  return plan;
}

std::optional<int64_t> SequenceSource::find_count(int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  const auto found = batch_counts_.find(epoch);
  if (found == batch_counts_.end()) return std::nullopt;
  return found->second;
}

int64_t SequenceSource::batches_of_epoch(int64_t epoch) const {
  if (const auto known = find_count(epoch)) return *known;
  const auto has_room = [&] {
    const std::lock_guard lock(mutex_);
    return plans_.size() < kKeptPlans;
  };
  if (has_room()) return static_cast<int64_t>(plan(epoch)->batches.size());
  // Counting ahead must not drop the plans in use.
  const std::lock_guard planning(planning_);
  if (const auto known = find_count(epoch)) return *known;
  const auto count = static_cast<int64_t>(make_plan(epoch).batches.size());
  const std::lock_guard lock(mutex_);
  batch_counts_[epoch] = count;
  return count;
}

int64_t SequenceSource::count_trained(int64_t batches) const {
  if (batches >= batches_of_epoch(0)) return report_.trained;
  const auto plan = this->plan(0);
  std::vector<bool> is_trained(static_cast<size_t>(dataset_->num_sequences()));
  const auto note = [&](int64_t piece) {
    is_trained[static_cast<size_t>(pieces_[static_cast<size_t>(piece)].sequence)] = true;
  };
  for (int64_t i = 0; i < batches; ++i) {
    for (const int64_t row : plan->batches[static_cast<size_t>(i)]) {
      if (plan->rows.empty())
        note(row);
      else
        for (const int64_t piece : plan->rows[static_cast<size_t>(row)])
          note(piece);
    }
  }
  return std::count(is_trained.begin(), is_trained.end(), true);
}

TokenBatch SequenceSource::read(int64_t epoch, int64_t batch) const {
  const auto plan = this->plan(epoch);
  DS_CHECK(batch >= 0 && batch < static_cast<int64_t>(plan->batches.size()));
  const bool is_packed = !plan->rows.empty();
  std::vector<std::vector<Document>> rows;
  for (const int64_t row : plan->batches[static_cast<size_t>(batch)]) {
    const std::vector<int64_t> single = {row};
    rows.emplace_back();
    for (const int64_t number : is_packed ? plan->rows[static_cast<size_t>(row)] : single) {
      const Piece& piece = pieces_[static_cast<size_t>(number)];
      TokenSequence tokens = dataset_->sequence(piece.sequence);
      check_token_ids(
          tokens.ids, vocab_size_,
          fmt::format("{}, row {}", dataset_->folder().string(), piece.sequence));
      const auto narrow = [&](auto& values) {
        DS_CHECK(piece.begin + piece.length <= values.size());
        values.erase(values.begin(), values.begin() + piece.begin);
        values.resize(piece.length);
      };
      narrow(tokens.ids);
      narrow(tokens.mask);
      rows.back().push_back({std::move(tokens), piece.sequence, piece.begin});
    }
  }
  return make_token_batch(rows, is_packed);
}

std::vector<std::string> SequenceSource::describe() const {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "{}: {} samples loaded (Arrow-backed, lazy access)", dataset_->folder().string(),
      report_.read));
  lines.push_back(fmt::format(
      "sequences: {} read = {} trained + {} held out + {} too long + {} without trainable tokens; "
      "longer than {} tokens: {} cut, {} in windows{}",
      report_.read, report_.trained, report_.held_out, report_.too_long, report_.no_anchor,
      settings_.max_length, report_.cut, report_.windowed,
      report_.bare_windows == 0
          ? ""
          : fmt::format("; windows left out without trainable tokens: {}", report_.bare_windows)));
  const auto plan = this->plan(0);
  const auto& batches = plan->batches;
  const auto [smallest, largest] = std::minmax_element(
      batches.begin(), batches.end(),
      [](const auto& left, const auto& right) { return left.size() < right.size(); });
  const auto lengths = row_lengths(*plan);
  const auto num_batches = static_cast<double>(batches.size());
  lines.push_back(fmt::format(
      "Batches per epoch: {} (min={} max={} avg={:.1f})", batches.size(), smallest->size(),
      largest->size(), static_cast<double>(lengths.size()) / num_batches));
  if (plan->rows.empty()) {
    const auto ends = choose_bucket_ends(lengths, settings_.num_buckets);
    const auto counts = count_by_bucket(lengths, batches, ends);
    for (size_t i = 0; i < ends.size(); ++i)
      lines.push_back(fmt::format(
          "Bucket {} [{:4d}, {}): {:6d} batches ({:5.1f}%)", i, i == 0 ? 0 : ends[i - 1], ends[i],
          counts[i], 100 * static_cast<double>(counts[i]) / num_batches));
  } else {
    lines.push_back(
        fmt::format("packed: {} sequences in {} rows", pieces_.size(), plan->rows.size()));
  }
  lines.push_back(
      fmt::format("padding: {:.2f} % of a batch's tokens", 100 * padding_share(lengths, batches)));
  return lines;
}

}  // namespace draftsmith::data
