// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/dataset_writer.h"

#include <fmt/format.h>

#include <memory>

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/writer.h>

#include "draftsmith/base/atomic_file.h"
#include "draftsmith/formats/json.h"

namespace draftsmith::data {
namespace {

constexpr int64_t kRowsPerRecordBatch = 1000;
constexpr int64_t kTokensPerRecordBatch = int64_t{1} << 26;  // list offsets are 32 bits wide

void require(const arrow::Status& status, const std::filesystem::path& path) {
  if (!status.ok()) fail_write(path, status.message());
}

formats::Json describe_list(const char* dtype) {
  return {{"feature", {{"dtype", dtype}, {"_type", "Value"}}}, {"_type", "List"}};
}

std::shared_ptr<arrow::Schema> make_schema() {
  return arrow::schema(
      {arrow::field("input_ids", arrow::list(arrow::int32())),
       arrow::field("loss_mask", arrow::list(arrow::int8()))});
}

}  // namespace

struct DatasetWriter::State {
  State(const std::filesystem::path& folder, int64_t tokens)
      : staged(folder), tokens_per_shard(tokens) {
    open_shard();
  }

  std::filesystem::path shard_path(size_t number) const {
    return staged.path() / fmt::format("part-{:05d}.arrow", number);
  }

  void open_shard() {
    path = shard_path(num_shards++);
    shard_tokens = 0;
    auto opened = arrow::io::FileOutputStream::Open(path.string());
    require(opened.status(), path);
    file = *opened;
    auto made = arrow::ipc::MakeStreamWriter(file, schema);
    require(made.status(), path);
    writer = *made;
  }

  void close_shard() {
    write_record_batch();
    require(writer->Close(), path);
    require(file->Close(), path);
  }

  void write_record_batch() {
    const int64_t rows = id_lists.length();
    if (rows == 0) return;
    std::shared_ptr<arrow::Array> id_array;
    std::shared_ptr<arrow::Array> mask_array;
    require(id_lists.Finish(&id_array), path);
    require(mask_lists.Finish(&mask_array), path);
    require(
        writer->WriteRecordBatch(*arrow::RecordBatch::Make(schema, rows, {id_array, mask_array})),
        path);
  }

  StagedFolder staged;
  int64_t tokens_per_shard;
  std::shared_ptr<arrow::Schema> schema = make_schema();
  std::shared_ptr<arrow::Int32Builder> ids = std::make_shared<arrow::Int32Builder>();
  std::shared_ptr<arrow::Int8Builder> mask = std::make_shared<arrow::Int8Builder>();
  arrow::ListBuilder id_lists{arrow::default_memory_pool(), ids};
  arrow::ListBuilder mask_lists{arrow::default_memory_pool(), mask};
  std::filesystem::path path;
  std::shared_ptr<arrow::io::FileOutputStream> file;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer;
  size_t num_shards = 0;
  int64_t shard_tokens = 0;
};

DatasetWriter::DatasetWriter(const std::filesystem::path& folder, int64_t tokens_per_shard)
    : state_(std::make_unique<State>(folder, tokens_per_shard)) {}

DatasetWriter::~DatasetWriter() = default;

const std::filesystem::path& DatasetWriter::staging() const { return state_->staged.path(); }

void DatasetWriter::add(const TokenSequence& sequence) {
  State& state = *state_;
  const auto length = static_cast<int64_t>(sequence.ids.size());
  if (state.shard_tokens > 0 && state.shard_tokens + length > state.tokens_per_shard) {
    state.close_shard();
    state.open_shard();
  }
  state.shard_tokens += length;
  require(state.id_lists.Append(), state.path);
  require(state.mask_lists.Append(), state.path);
  const std::vector<int32_t> ids(sequence.ids.begin(), sequence.ids.end());
  const std::vector<int8_t> mask(sequence.mask.begin(), sequence.mask.end());
  require(state.ids->AppendValues(ids), state.path);
  require(state.mask->AppendValues(mask), state.path);
  if (state.id_lists.length() >= kRowsPerRecordBatch ||
      state.ids->length() >= kTokensPerRecordBatch)
    state.write_record_batch();
}

void DatasetWriter::finish() {
  State& state = *state_;
  state.close_shard();
  formats::Json files = formats::Json::array();
  for (size_t i = 0; i < state.num_shards; ++i) {
    const std::string name = fmt::format("data-{:05d}-of-{:05d}.arrow", i, state.num_shards);
    std::filesystem::rename(state.shard_path(i), state.staged.path() / name);
    files.push_back({{"filename", name}});
  }
  const formats::Json json = {
      {"_data_files", files},       {"_fingerprint", "draftsmith"},
      {"_format_columns", nullptr}, {"_format_kwargs", formats::Json::object()},
      {"_format_type", nullptr},    {"_output_all_columns", false},
      {"_split", nullptr}};
  write_file_atomically(state.staged.path() / "state.json", json.dump(2));
  const formats::Json info = {
      {"citation", ""},
      {"description", ""},
      {"features", {{"input_ids", describe_list("int32")}, {"loss_mask", describe_list("int8")}}},
      {"homepage", ""},
      {"license", ""}};
  write_file_atomically(state.staged.path() / "dataset_info.json", info.dump(2));
  state.staged.publish();
}

void write_dataset(
    const std::filesystem::path& folder,
    const std::vector<TokenSequence>& sequences) {
  DatasetWriter writer(folder);
  for (const TokenSequence& sequence : sequences)
    writer.add(sequence);
  writer.finish();
}

}  // namespace draftsmith::data
