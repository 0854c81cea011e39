// The ways in which a kernel of the sm90a family may do the softmax of an item: which it has, and
// what it takes when one has failed its proof.
#pragma once

#include "templates/tile/logistic.cuh"
#include "templates/tile/sm90_layout.cuh"

namespace att {
namespace sm90 {

// With bf16 nothing need be known of the scores: the reference is a constant, and a row sum from
// 2^-90 to 2^115 proves that no exponential that counts was lost. 40 lets scores lie from 34 below
// 0 to 107 above it, in natural units: large ones are common (hot keys), small ones are not. Not
// with masks of which it is hard to say whether a row has no key, whose sum is 0, or one, whose
// exponential must be exact (normalise()).
constexpr bool kConstantReference =
    plan::kFrozenMax && kBf16 && !kScoreVariesByKey && (!spec::kHasMask || kRowIsRange);

// Whether the first piece of an item whose reference is constant goes through the running softmax
// too, which then finds a maximum for nothing: a copy of the score less, 5 % of gemma2's compile
// time. O is not set by it then but scaled, as it is zeroed before: 2 %. (For all kernels, ptxas
// ordered steady loops worse: d 256 full lost 2 % of its speed.)
constexpr bool kSharesFirst = kConstantReference && spec::kHasScore && !kScoreIsLine;

// Scores that lie so close together that a first tile's maximum serves all of them.
constexpr bool kIsBounded = kConstantReference && kSharesReciprocals && kLogisticHeight <= 150.0f;

// Whether a second steady loop raises its references where a tile asks for it. Only what is not
// finite then fails once more. fp16 has room for a rise of 2^23 after the first tile and no more;
// with bf16 it is heavy tails, and scores that climb by hundreds, that need it. Not in two pieces a
// tile where the loop shares its first piece's softmax: ptxas serialises the products (C7514).
constexpr bool kTracks = plan::kFrozenMax && !kIsBounded && (kPieces == 1 || !kSharesFirst);

// Whether there is a second way before the running maximum. Items that fail their proof are done
// again with the frozen maximum of their first tile, and so are the later ones of the warpgroup,
// most of which would fail too.
constexpr bool kHasSecondWay = kConstantReference || kTracks;

// Whether an item teaches the warpgroup how to do its next ones. Off the counter it is chance which
// they are, and with the way their last bits: not where launches are to give the same ones.
constexpr bool kTeaches = !plan::kSameBits || plan::kSchedule != plan::Schedule::longest_first;

// Off the counter, where chance says what a CTA does, bit kLearnedShift + w of `redo` says that an
// item of warpgroup w failed before this one, which so begins with the second way.
constexpr bool kHints =
    kTeaches && kHasSecondWay && plan::kSchedule == plan::Schedule::longest_first;

// Whether a warpgroup's first item, where its first tile is not ordinary, is done the second way on
// trial, and whether its verdict is known to the second one. Not in two pieces a tile: d 64 lost 1
// to 4 % of its speed on normal numbers, where no such code runs.
constexpr bool kLearns = kTeaches && kTracks && kPieces == 1;

// Whether a warpgroup asks before its second item whether the first one failed, as the scheduler
// had nothing to say of it when it handed the second one out. (In one piece a tile it learns that.)
// Not beside a score: ALiBi lost 2.4 % of its speed on normal numbers.
constexpr bool kAsksAtOnce = kHints && kTracks && kPieces == 2 && !spec::kHasScore;

// Whether the first tile of an item is looked at for what the first way does not serve. A frozen
// maximum serves all scores but those that rise above it: heavy tails. Not with a mask and a score:
// ALiBi lost 1.3 % on normal numbers, and on heavy tails 1.39 of FlexAttention are left of 1.57.
constexpr bool kProbes =
    kConstantReference || kLearns ||
    (kTracks && kPieces == 2 && (!spec::kHasMask || (!kBf16 && !spec::kHasScore)));

// Whether what one warpgroup sees in the first tile of its first item is told to the others of the
// CTA, as any of them makes all of them do an item again. Where each of them has that tile they all
// meet there; elsewhere off the counter the scheduler tells them with the next item. (Beside a
// score that is no line ptxas serialises the products of kernels in which they meet: C7514.)
constexpr bool kTellsOthers = kTeaches && kTracks && kPieces == 2 && kWarpgroups > 1;
constexpr bool kMeets = kTellsOthers && !spec::kHasMask && (!spec::kHasScore || kScoreIsLine) &&
                        !spec::kIsPacked && plan::kKeyPieces == 1;

// Under a mask, off the counter, each says when it has looked, in bits of failed_word() from this
// one on, and waits for the others a while where an item that is done twice costs more. (With fp16
// all see what there is, and it costs 0.3 %.)
constexpr bool kWaitsForOthers =
    kTellsOthers && !kMeets && kHints && kCluster == 1 && kProbes && kBf16;
constexpr int kLookedShift = 16;
constexpr int kLeastWaitedKeys = 2048;

// Scores, log2: what a constant reference serves with room to spare, and what is far below what it
// does not.
constexpr float kLowest = -70.0f, kHighest = 130.0f, kOrdinary = 60.0f;
// Scores of a row that are further apart, log2, will rise by more than fp16 has room for.
constexpr float kFarApart = 40.0f;

}  // namespace sm90
}  // namespace att
