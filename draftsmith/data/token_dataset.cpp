// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/token_dataset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>

#include "draftsmith/base/error.h"
#include "draftsmith/base/file_name.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMaskColumns[] = {"loss_mask", "assistant_masks", "labels"};
constexpr int64_t kIgnoredLabel = -100;
constexpr int64_t kRoomBytes = int64_t{64} << 20;  // beyond a file's size, to decompress it
constexpr int64_t kMostTokens = kRoomBytes / 8;    // of a sequence, whose ids are widened

[[noreturn]] void fail(
    const fs::path& path,
    std::string what,
    std::string expected,
    std::string got,
    std::string hint = "") {
  throw DataError(
      {.what = std::move(what),
       .expected = std::move(expected),
       .got = std::move(got),
       .where = path.string(),
       .hint = std::move(hint)});
}

template <class Value>
Value unwrap(arrow::Result<Value> result, const fs::path& path) {
  if (!result.ok())
    fail(path, "Arrow file", "a readable stream or file", result.status().message());
  return std::move(result).ValueUnsafe();
}

/// All record batches of a shard, still in the mapped file. What is compressed there lies in
/// `pools`, which get another one.
arrow::RecordBatchVector read_shard(
    const fs::path& path,
    std::vector<std::unique_ptr<arrow::MemoryPool>>& pools) {
  const auto file =
      unwrap(arrow::io::MemoryMappedFile::Open(path.string(), arrow::io::FileMode::READ), path);
  // A small file must not claim to decompress to any size.
  auto* shared = arrow::default_memory_pool();
  pools.push_back(std::make_unique<arrow::CappedMemoryPool>(
      shared, shared->bytes_allocated() + unwrap(file->GetSize(), path) + kRoomBytes));
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.memory_pool = pools.back().get();
  const auto magic = unwrap(file->ReadAt(0, 6), path);
  const bool is_file_format = magic->ToString() == "ARROW1";
  arrow::RecordBatchVector batches;
  if (is_file_format) {
    const auto reader = unwrap(arrow::ipc::RecordBatchFileReader::Open(file, options), path);
    for (int i = 0; i < reader->num_record_batches(); ++i)
      batches.push_back(unwrap(reader->ReadRecordBatch(i), path));
  } else {
    const auto reader = unwrap(arrow::ipc::RecordBatchStreamReader::Open(file, options), path);
    while (true) {
      auto batch = unwrap(reader->Next(), path);
      if (!batch) break;
      batches.push_back(std::move(batch));
    }
  }
  return batches;
}

/// Calls `function` with the typed array of integers or booleans.
template <class Function>
void visit_typed(
    const arrow::Array& values,
    const std::string& what,
    const fs::path& path,
    Function&& function) {
  switch (values.type_id()) {
    case arrow::Type::BOOL:
      return function(static_cast<const arrow::BooleanArray&>(values));
    case arrow::Type::INT8:
      return function(static_cast<const arrow::Int8Array&>(values));
    case arrow::Type::UINT8:
      return function(static_cast<const arrow::UInt8Array&>(values));
    case arrow::Type::INT16:
      return function(static_cast<const arrow::Int16Array&>(values));
    case arrow::Type::UINT16:
      return function(static_cast<const arrow::UInt16Array&>(values));
    case arrow::Type::INT32:
      return function(static_cast<const arrow::Int32Array&>(values));
    case arrow::Type::UINT32:
      return function(static_cast<const arrow::UInt32Array&>(values));
    case arrow::Type::INT64:
      return function(static_cast<const arrow::Int64Array&>(values));
    case arrow::Type::UINT64:
      return function(static_cast<const arrow::UInt64Array&>(values));
    default:
      fail(path, what, "a list of integers", values.type()->ToString());
  }
}

/// Values `[begin, end)` of a list column's row, not copied.
struct Stretch {
  std::shared_ptr<arrow::Array> values;
  int64_t begin, end;
  std::string what;
  const fs::path& path;

  int64_t length() const { return end - begin; }
  void check_no_nulls() const {
    if (values->null_count() == 0) return;
    for (int64_t i = begin; i < end; ++i)
      if (values->IsNull(i)) fail(path, what, "values", "null");
  }
  /// Calls `function(i, value)` for i = 0 .. length-1 until it returns false.
  template <class Function>
  void each(Function&& function) const {
    check_no_nulls();
    visit_typed(*values, what, path, [&](const auto& typed) {
      for (int64_t i = begin; i < end; ++i)
        if (!function(i - begin, static_cast<int64_t>(typed.Value(i)))) return;
    });
  }
};

/// A list or large_list column of one record batch.
struct ListColumn {
  std::shared_ptr<arrow::Array> array;
  std::string name;

  static ListColumn
  find(const arrow::RecordBatch& batch, const std::string& name, const fs::path& path) {
    const auto array = batch.GetColumnByName(name);
    if (!array)
      fail(
          path, "column " + name, "to be there",
          fmt::format("columns {}", batch.schema()->field_names()));
    const auto type = array->type_id();
    if (type != arrow::Type::LIST && type != arrow::Type::LARGE_LIST)
      fail(path, "column " + name, "a list of integers", array->type()->ToString());
    // Offsets come from the file; a damaged one must not be followed out of the mapping.
    const auto status = array->ValidateFull();
    if (!status.ok()) fail(path, "column " + name, "valid lists", status.message());
    // A wrong element type is refused at once.
    const ListColumn column{array, name};
    visit_typed(*column.values(), "column " + name, path, [](const auto&) {});
    return column;
  }

  template <class Function>
  auto visit(Function&& function) const {
    return array->type_id() == arrow::Type::LIST
               ? function(static_cast<const arrow::ListArray&>(*array))
               : function(static_cast<const arrow::LargeListArray&>(*array));
  }
  std::shared_ptr<arrow::Array> values() const {
    return visit([](const auto& list) { return list.values(); });
  }
  int64_t length(int64_t row) const {
    return visit([&](const auto& list) { return static_cast<int64_t>(list.value_length(row)); });
  }
  Stretch row(int64_t row, const fs::path& path, const std::string& row_name) const {
    if (array->IsNull(row)) fail(path, row_name + " " + name, "a list", "null");
    return visit([&](const auto& list) {
      const int64_t begin = list.value_offset(row);
      return Stretch{
          list.values(), begin, begin + list.value_length(row), row_name + " " + name, path};
    });
  }
  /// What counts as unsupervised in this column.
  int64_t unsupervised() const { return name == "labels" ? kIgnoredLabel : 0; }
};

void check_sequence_length(const Stretch& ids, const std::string& row_name) {
  if (ids.length() <= kMostTokens) return;
  fail(
      ids.path, row_name, fmt::format("at most {} tokens", kMostTokens),
      fmt::format("{}", ids.length()));
}

void check_mask_length(
    const Stretch& mask,
    int64_t num_ids,
    const std::string& column,
    const std::string& row_name) {
  if (mask.length() == num_ids) return;
  fail(
      mask.path, row_name, fmt::format("{} values of {}", num_ids, column),
      fmt::format("{}", mask.length()));
}

/// Name, size and time of change of a shard.
std::string describe_file(const fs::path& path) {
  return fmt::format(
      "{} {} {}\n", path.filename().string(), fs::file_size(path),
      fs::last_write_time(path).time_since_epoch().count());
}

fs::path find_split(const fs::path& folder, const std::string& split) {
  const fs::path dict = folder / "dataset_dict.json";
  if (!fs::exists(dict)) return folder;
  const auto splits = formats::JsonObject::from_file(dict).texts("splits");
  if (std::find(splits.begin(), splits.end(), split) != splits.end() && is_plain_file_name(split))
    return folder / split;
  throw ConfigError(
      {.what = "data.split",
       .expected = fmt::format("one of {}", fmt::join(splits, ", ")),
       .got = split.empty() ? "none" : "'" + split + "'",
       .where = folder.string(),
       .hint = splits.empty() ? "" : "--data.split=" + splits.front()});
}

}  // namespace

struct TokenDataset::Shards {
  struct Batch {
    ListColumn ids;
    std::vector<ListColumn> masks;
    fs::path path;
    int64_t first_row;
  };

  fs::path folder;
  std::string fingerprint;
  std::vector<std::unique_ptr<arrow::MemoryPool>> pools;  // before what lies in them
  std::vector<Batch> batches;
  int64_t num_rows = 0;

  const Batch& find(int64_t row) const {
    DS_CHECK(row >= 0 && row < num_rows);
    const auto next = std::upper_bound(
        batches.begin(), batches.end(), row,
        [](int64_t value, const Batch& batch) { return value < batch.first_row; });
    return *(next - 1);
  }

  void add(const arrow::RecordBatch& batch, const fs::path& path) {
    if (batch.num_rows() == 0) return;
    Batch entry{ListColumn::find(batch, "input_ids", path), {}, path, num_rows};
    for (const char* name : kMaskColumns)
      if (batch.schema()->GetFieldIndex(name) >= 0)
        entry.masks.push_back(ListColumn::find(batch, name, path));
    if (entry.masks.empty()) {
      fail(
          path, "loss mask", "a column loss_mask, assistant_masks or labels",
          fmt::format("columns {}", batch.schema()->field_names()));
    }
    batches.push_back(std::move(entry));
    num_rows += batch.num_rows();
  }
};

TokenDataset::TokenDataset(std::unique_ptr<Shards> shards) : shards_(std::move(shards)) {}
TokenDataset::TokenDataset(TokenDataset&&) noexcept = default;
TokenDataset& TokenDataset::operator=(TokenDataset&&) noexcept = default;
TokenDataset::~TokenDataset() = default;

TokenDataset TokenDataset::open(const fs::path& folder, const std::string& split) {
  auto shards = std::make_unique<Shards>();
  if (!fs::is_directory(folder))
    fail(
        folder, "data.path", "a folder written by save_to_disk",
        fs::exists(folder) ? "a file" : "no such folder");
  shards->folder = find_split(folder, split);
  const auto state = formats::JsonObject::from_file(shards->folder / "state.json");
  if (!state.has("_data_files") || !state.value().at("_data_files").is_array())
    fail(state.where(), "_data_files", "a list of files", "none");
  std::set<std::string> names;
  for (const auto& item : state.value().at("_data_files")) {
    const std::string name = formats::JsonObject(item, state.where()).text("filename");
    if (!is_plain_file_name(name))
      fail(state.where(), "filename", "a file name without folders", "'" + name + "'");
    if (!names.insert(name).second)
      fail(state.where(), "filename", "each file once", "'" + name + "' twice");
    const fs::path path = shards->folder / name;
    std::error_code error;
    if (!fs::is_regular_file(path, error))
      fail(path, "shard", "the file that state.json lists", "no such file");
    shards->fingerprint += describe_file(path);
    for (const auto& batch : read_shard(path, shards->pools))
      shards->add(*batch, path);
  }
  shards->fingerprint += fmt::format("{} rows", shards->num_rows);
  if (shards->num_rows == 0) fail(shards->folder, "dataset", "at least one sequence", "none");
  return TokenDataset(std::move(shards));
}

int64_t TokenDataset::num_sequences() const { return shards_->num_rows; }
const fs::path& TokenDataset::folder() const { return shards_->folder; }
const std::string& TokenDataset::fingerprint() const { return shards_->fingerprint; }

int64_t TokenDataset::length(int64_t index) const {
  const auto& batch = shards_->find(index);
  return batch.ids.length(index - batch.first_row);
}

TokenSequence TokenDataset::sequence(int64_t index) const {
  const auto& batch = shards_->find(index);
  const int64_t row = index - batch.first_row;
  const std::string name = fmt::format("row {}", index);
  TokenSequence result;
  const Stretch ids = batch.ids.row(row, batch.path, name);
  check_sequence_length(ids, name);
  result.ids.reserve(static_cast<size_t>(ids.length()));
  ids.each([&](int64_t, int64_t id) {
    result.ids.push_back(id);
    return true;
  });
  for (const ListColumn& column : batch.masks) {
    const Stretch values = column.row(row, batch.path, name);
    check_mask_length(values, ids.length(), column.name, name);
    std::vector<uint8_t> bits;
    bits.reserve(result.ids.size());
    values.each([&, unsupervised = column.unsupervised()](int64_t, int64_t value) {
      bits.push_back(value != unsupervised);
      return true;
    });
    if (&column != batch.masks.data() && result.mask != bits)
      fail(batch.path, name, "mask columns that agree", "a different mask in " + column.name);
    result.mask = std::move(bits);
  }
  return result;
}

SequenceFacts TokenDataset::facts(int64_t index) const {
  const auto& batch = shards_->find(index);
  SequenceFacts facts;
  if (batch.masks.size() > 1) {  // they are compared as they are read
    facts.first_anchor = find_first_anchor(sequence(index).mask);
  }
  const int64_t row = index - batch.first_row;
  const std::string name = fmt::format("row {}", index);
  const Stretch ids = batch.ids.row(row, batch.path, name);
  check_sequence_length(ids, name);
  facts.length = ids.length();
  if (facts.length > 0) facts.smallest_id = INT64_MAX;
  ids.each([&](int64_t, int64_t id) {
    facts.smallest_id = std::min(facts.smallest_id, id);
    facts.largest_id = std::max(facts.largest_id, id);
    return true;
  });
  if (batch.masks.size() > 1) return facts;
  const ListColumn& column = batch.masks.front();
  const Stretch values = column.row(row, batch.path, name);
  check_mask_length(values, facts.length, column.name, name);
  bool was_supervised = false;
  values.each([&, unsupervised = column.unsupervised()](int64_t i, int64_t value) {
    const bool is_supervised = value != unsupervised;
    if (is_supervised && was_supervised) facts.first_anchor = i - 1;
    was_supervised = is_supervised;
    return facts.first_anchor < 0;
  });
  return facts;
}

}  // namespace draftsmith::data
