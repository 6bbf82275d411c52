#pragma once

// Part of the kernels: included by kernels_body.hpp only, once per instruction set.
//
// Laying new weights out is bound by memory: whole blocks are transposed in registers and written
// past the caches, which are wanted by the decoding that goes on beside it.

#include "runtime/model/kernels_narrow.hpp"

namespace millrace::model {
namespace {

/// Lanes [from, end) of strip `strip`, word by word; what lies beyond the matrix is zero.
void pack_words(const std::byte* w, int64_t row_bytes, std::byte* to, int64_t n, uint32_t flip,
                int64_t strip, int64_t from, int64_t end) {
  for (int64_t j = 0; j < strip_width; ++j) {
    const int64_t row = strip * strip_width + j;
    const std::byte* source = w + row * row_bytes;
    for (int64_t i = from; i < end; ++i) {
      uint32_t word = 0;
      if (row < n) {
        if (i * 4 + 4 <= row_bytes)
          word = static_cast<uint32_t>(word_at(source + i * 4));
        else if (i * 4 < row_bytes)
          memcpy(&word, source + i * 4, static_cast<size_t>(row_bytes - i * 4));
      }
      word ^= flip;
      memcpy(to + i * 64 + j * 4, &word, 4);
    }
  }
}

#if defined(__AVX512F__)
/// 16 lanes of 16 rows. `to` is aligned to 64 bytes.
MILLRACE_INLINE void pack_block(const std::byte* w, int64_t row_bytes, std::byte* to,
                                __m512i flip) {
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    r[i] = _mm512_loadu_si512(w + i * row_bytes);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // r[4·i + c] has lanes c, 4 + c, 8 + c and 12 + c of the rows from 4·i on.
  const auto put = [&](int lane, __m512i x) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + lane * 64), _mm512_xor_si512(x, flip));
  };
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xDD);
    put(c, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    put(4 + c, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    put(8 + c, _mm512_shuffle_i32x4(even_low, even_high, 0xDD));
    put(12 + c, _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD));
  }
}
#endif

/// Packs rows of `lanes_k` 32-bit lanes, of which the row has only its first `row_bytes` bytes.
void pack_lanes(const std::byte* w, int64_t row_bytes, std::byte* packed, int64_t n,
                int64_t lanes_k, uint32_t flip, int64_t first, int64_t last) {
  constexpr int64_t together = 64; // lanes: a block of 16 rows by these stays in the first cache
  for (int64_t strip = first; strip < last; ++strip) {
    std::byte* to = packed + strip * lanes_k * 64;
    int64_t from = 0;
#if defined(__AVX512F__)
    if ((strip + 1) * strip_width <= n && reinterpret_cast<uintptr_t>(to) % 64 == 0)
      for (; (from + 16) * 4 <= row_bytes; from += 16)
        pack_block(w + strip * strip_width * row_bytes + from * 4, row_bytes, to + from * 64,
                   _mm512_set1_epi32(static_cast<int32_t>(flip)));
#endif
    for (; from < lanes_k; from += together)
      pack_words(w, row_bytes, to, n, flip, strip, from,
                 from + together < lanes_k ? from + together : lanes_k);
  }
#if defined(__AVX512F__)
  _mm_sfence(); // before another thread is told
#endif
}

} // namespace
} // namespace millrace::model
