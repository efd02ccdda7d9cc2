// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/batch_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "draftsmith/data/mixture.h"

namespace draftsmith::data {

struct BatchSource::State {
  DataSettings settings;
  std::filesystem::path index_folder;
  std::vector<std::unique_ptr<SequenceSource>> sources;
  std::vector<std::optional<SequenceIndex>> scanned;  // indices that are not kept yet
  std::optional<Mixture> mixture;

  explicit State(DataSettings settings_in) : settings(std::move(settings_in)) {}
  State(const State&) = delete;  // the mixture refers to it
  State& operator=(const State&) = delete;

  /// `weights` of 0 stand for the sources' sizes.
  void mix(std::vector<double> weights) {
    for (size_t i = 0; i < sources.size(); ++i)
      if (weights[i] == 0) weights[i] = static_cast<double>(sources[i]->batches_of_epoch(0));
    mixture.emplace(std::move(weights), [this](int64_t source, int64_t epoch) {
      return sources[static_cast<size_t>(source)]->batches_of_epoch(epoch);
    });
  }

  DataCursor normalize(DataCursor cursor) const {
    while (!mixture->has_batch(cursor.epoch, cursor.batch))
      cursor = {cursor.epoch + 1, 0};
    return cursor;
  }

  SourceBatch load(DataCursor cursor, const BlockRule& rule) const {
    cursor = normalize(cursor);
    const Turn turn = mixture->turn(cursor.epoch, cursor.batch);
    SourceBatch batch;
    batch.source = turn.source;
    batch.tokens = sources[static_cast<size_t>(turn.source)]->read(turn.epoch, turn.batch);
    const BlockRows rows{batch.tokens.ids, batch.tokens.mask, batch.tokens.document_ids};
    const AnchorRule anchors{
        settings.num_anchors, settings.anchors_per_sequence, static_cast<uint64_t>(settings.seed),
        static_cast<uint64_t>(turn.epoch)};
    batch.blocks = make_draft_blocks(rows, choose_anchors(rows, batch.tokens.parts, anchors), rule);
    batch.at = cursor;
    batch.next = {cursor.epoch, cursor.batch + 1};
    return batch;
  }
};

BatchSource::BatchSource(std::shared_ptr<const State> state) : state_(std::move(state)) {}
BatchSource::BatchSource(BatchSource&&) noexcept = default;
BatchSource::~BatchSource() = default;

BatchSource BatchSource::open(
    const DataSettings& settings,
    int64_t vocab_size,
    const std::filesystem::path& index_folder) {
  auto state = std::make_shared<State>(settings);
  state->index_folder = index_folder;
  std::vector<double> weights;
  for (const auto& [path, weight] : list_datasets(settings)) {
    const auto dataset =
        std::make_shared<const TokenDataset>(TokenDataset::open(path, settings.split));
    bool was_scanned = false;
    SequenceIndex index = load_index(*dataset, index_folder, was_scanned);
    state->sources.push_back(
        std::make_unique<SequenceSource>(dataset, index, settings, vocab_size));
    state->scanned.emplace_back();
    if (was_scanned) state->scanned.back() = std::move(index);
    weights.push_back(weight);
  }
  state->mix(std::move(weights));
  return BatchSource(std::move(state));
}

BatchSource::BatchSource(TokenDataset dataset, const DataSettings& settings, int64_t vocab_size) {
  const auto shared = std::make_shared<const TokenDataset>(std::move(dataset));
  auto state = std::make_shared<State>(settings);
  state->sources.push_back(
      std::make_unique<SequenceSource>(shared, scan_sequences(*shared), settings, vocab_size));
  state->mix({0});
  state_ = std::move(state);
}

void BatchSource::save_index() const {
  for (size_t i = 0; i < state_->scanned.size(); ++i)
    if (state_->scanned[i])
      keep_index(*state_->scanned[i], state_->sources[i]->dataset(), state_->index_folder);
}

const DataSettings& BatchSource::settings() const { return state_->settings; }

DataReport BatchSource::report() const {
  DataReport sum;
  for (const auto& source : state_->sources)
    sum += source->report();
  return sum;
}

DataReport BatchSource::report(DataCursor cursor) const {
  DataReport sum = report();
  sum.trained = 0;
  const auto taken = state_->mixture->taken_before(cursor.epoch, cursor.batch);
  for (size_t i = 0; i < taken.size(); ++i)
    sum.trained += state_->sources[i]->count_trained(taken[i]);
  return sum;
}

std::vector<std::string> BatchSource::source_names() const {
  std::vector<std::string> names;
  for (const auto& source : state_->sources)
    names.push_back(source->dataset().folder().string());
  return names;
}

const TokenDataset& BatchSource::dataset(int64_t source) const {
  return state_->sources.at(static_cast<size_t>(source))->dataset();
}

std::vector<SourceShare> BatchSource::shares(DataCursor cursor) const {
  const auto taken = state_->mixture->taken_before(cursor.epoch, cursor.batch);
  const auto names = source_names();
  const double total = static_cast<double>(std::accumulate(taken.begin(), taken.end(), int64_t{0}));
  std::vector<SourceShare> shares;
  for (size_t i = 0; i < names.size(); ++i) {
    const double seen = total > 0 ? static_cast<double>(taken[i]) / total : 0;
    shares.push_back({names[i], state_->mixture->shares()[i], seen, taken[i]});
  }
  return shares;
}

std::vector<std::string> BatchSource::describe() const {
  std::vector<std::string> lines;
  for (const auto& source : state_->sources)
    for (auto& line : source->describe())
      lines.push_back(std::move(line));
  if (state_->sources.size() == 1) return lines;
  const auto all = shares({0, batches_of_epoch(0)});
  for (size_t i = 0; i < all.size(); ++i) {
    const SourceShare& share = all[i];
    const auto size = static_cast<double>(state_->sources[i]->batches_of_epoch(0));
    lines.push_back(fmt::format(
        "mixture: {:5.1f} % of the batches from {}: {} in the first epoch, {:.2f} passes",
        100 * share.planned, share.path, share.batches, static_cast<double>(share.batches) / size));
  }
  lines.push_back(fmt::format("mixture: {} batches in the first epoch", batches_of_epoch(0)));
  return lines;
}

int64_t BatchSource::batches_of_epoch(int64_t epoch) const {
  return state_->mixture->batches_of_epoch(epoch);
}

int64_t BatchSource::most_batch_tokens() const {
  int64_t most = 0;
  for (const auto& source : state_->sources)
    most = std::max(most, source->most_batch_tokens());
  return most;
}

std::vector<int64_t> BatchSource::batch_tokens() const {
  std::vector<int64_t> all;
  for (const auto& source : state_->sources) {
    const auto own = source->batch_tokens();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

SourceBatch BatchSource::load(DataCursor cursor, const BlockRule& rule) const {
  return state_->load(cursor, rule);
}

DataCursor BatchSource::advance(DataCursor cursor, int64_t count) const {
  for (; count > 0; --count) {
    cursor = state_->normalize(cursor);
    ++cursor.batch;
  }
  return cursor;
}

SourceBatch BatchSource::read(DataCursor cursor, const BlockRule& rule, int64_t stride) {
  auto ahead = std::exchange(ahead_, std::nullopt);
  SourceBatch batch = ahead && ahead->cursor == cursor && ahead->rule == rule
                          ? ahead->batch.get()
                          : state_->load(cursor, rule);
  const DataCursor next = advance(batch.next, stride - 1);
  ahead_ = Ahead{next, rule, {}};
  ahead_->batch = std::async(
      std::launch::async, [state = state_, next, rule] { return state->load(next, rule); });
  return batch;
}

std::optional<BatchSource> BatchSource::held_out() const {
  auto state = std::make_shared<State>(state_->settings);
  for (const auto& source : state_->sources)
    if (auto part = source->held_out()) state->sources.push_back(std::move(part));
  if (state->sources.empty()) return std::nullopt;
  state->mix(std::vector<double>(state->sources.size(), 0));
  return BatchSource(std::move(state));
}

}  // namespace draftsmith::data
