// SPDX-License-Identifier: Apache-2.0
// Vectors of stored elements in the type that arithmetic uses. Included once per instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>

#if defined(DRAFTSMITH_OPS_CPU_STORAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DRAFTSMITH_OPS_CPU_STORAGE_INL_H_
#undef DRAFTSMITH_OPS_CPU_STORAGE_INL_H_
#else
#define DRAFTSMITH_OPS_CPU_STORAGE_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace draftsmith::ops::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// bfloat16 as its bits.
struct BF16 {
  uint16_t bits;
};

template <class T>
struct Stored {
  using Compute = T;
};
template <>
struct Stored<BF16> {
  using Compute = float;
};

template <class D, class T>
HWY_INLINE hn::Vec<D> load_wide(D d, const T* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const BF16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, &from->bits));
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}

/// `value` as an element of T holds it.
template <class T, class D>
HWY_INLINE hn::Vec<D> round_to(D d, hn::Vec<D> value) {
  if constexpr (sizeof(T) == sizeof(hn::TFromD<D>)) {
    return value;
  } else {
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
    return hn::BitCast(d, hn::And(rounded, hn::Set(d32, 0xFFFF0000u)));
  }
}

template <class D, class T>
HWY_INLINE void store_narrow(D d, hn::Vec<D> value, T* to) {
  hn::StoreU(value, d, to);
}
/// Rounds to nearest even, as libtorch does; values are finite.
template <class D>
HWY_INLINE void store_narrow(D /*d*/, hn::Vec<D> value, BF16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::ShiftRight<16>(hn::BitCast(d32, round_to<BF16>(D(), value)));
  hn::StoreU(hn::TruncateTo(d16, bits), d16, &to->bits);
}

template <class T>
typename Stored<T>::Compute load_scalar(const T* from) {
  return *from;
}
inline float load_scalar(const BF16* from) {
  const uint32_t bits = static_cast<uint32_t>(from->bits) << 16;
  float value;
  hwy::CopyBytes<sizeof(value)>(&bits, &value);
  return value;
}
template <class T>
void store_scalar(typename Stored<T>::Compute value, T* to) {
  *to = value;
}
template <>
inline void store_scalar<BF16>(float value, BF16* to) {
  uint32_t bits;
  hwy::CopyBytes<sizeof(bits)>(&value, &bits);
  to->bits = static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace draftsmith::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
