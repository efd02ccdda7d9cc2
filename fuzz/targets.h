// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace draftsmith::fuzz {

/// Each feeds some bytes to what reads a kind of file. A file is read, or refused with one of the
/// error types of base/error.h; anything else, another exception included, ends the process.
using Target = void (*)(const uint8_t* data, size_t size);

void read_safetensors(const uint8_t* data, size_t size);  // a file, its header alone, or an index
void read_checkpoint(const uint8_t* data, size_t size);   // manifest, state, a batch to replay
void read_config(const uint8_t* data, size_t size);       // config.json and generation_config.json
void read_dataset(const uint8_t* data, size_t size);      // an Arrow shard, state.json, the index
void read_features(const uint8_t* data, size_t size);     // features.json and a feature shard
void read_settings(const uint8_t* data, size_t size);     // a settings file
void read_tokenizer(const uint8_t* data, size_t size);    // tokenizer.json and prompts

}  // namespace draftsmith::fuzz
