// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace draftsmith {

/// A well-mixed 64-bit value of the given parts: the same parts give the same value on every
/// machine, whatever was drawn before. There is no state to save for a resume.
/// Source: the finaliser of splitmix64 (Steele, Lea, Flood 2014), applied once per part.
inline uint64_t hash_key(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0x9e3779b97f4a7c15ULL;
  for (const uint64_t part : parts) {
    state += part + 0x9e3779b97f4a7c15ULL;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ULL;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebULL;
    state ^= state >> 31;
  }
  return state;
}

}  // namespace draftsmith
