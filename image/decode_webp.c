/* WebP by libwebp. Of an animation the first frame is laid on an empty canvas, as libwebp's own decoder of animations does. */
#include <stdlib.h>
#include <string.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include "core/error.h"
#include "image/decode_formats.h"
#include "image/exif.h"

static uint32_t orientation_of(const WebPDemuxer *demux) {
    WebPChunkIterator chunk;
    if (!WebPDemuxGetChunk(demux, "EXIF", 1, &chunk)) return 1;
    uint32_t orientation = td_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    return orientation;
}

static td_status decode_frame(const WebPIterator *frame, uint32_t channels, td_picture *out, td_error *err) {
    const WebPData f = frame->fragment;
    const size_t   stride = (size_t)out->width * channels;
    const size_t   at = (size_t)frame->y_offset * stride + (size_t)frame->x_offset * channels;
    const size_t   room = stride * out->height - at;
    int            width, height;
    if (!WebPGetInfo(f.bytes, f.size, &width, &height) || frame->x_offset < 0 || frame->y_offset < 0 ||
        (uint64_t)frame->x_offset + (uint32_t)width > out->width ||
        (uint64_t)frame->y_offset + (uint32_t)height > out->height)
        return td_fail(err, TD_EFORMAT, "the WebP cannot be read: a frame does not lie in its picture");
    if (!(channels == 4 ? WebPDecodeRGBAInto : WebPDecodeRGBInto)(f.bytes, f.size, out->rgb + at, room, (int)stride))
        return td_fail(err, TD_EFORMAT, "the WebP cannot be read: it is damaged or cut off, or needs too much memory");
    return TD_OK;
}

static td_status decode(const WebPDemuxer *demux, bool has_alpha, uint64_t max_pixels, td_picture *out, td_error *err) {
    const uint32_t height = WebPDemuxGetI(demux, WEBP_FF_CANVAS_HEIGHT), width = WebPDemuxGetI(demux, WEBP_FF_CANVAS_WIDTH);
    const uint32_t channels = has_alpha ? 4 : 3;
    WebPIterator   frame;
    TD_TRY(td_picture_room(height, width, channels, max_pixels, &out->rgb, err));
    out->height = height, out->width = width;
    if (!WebPDemuxGetFrame(demux, 1, &frame)) return td_fail(err, TD_EFORMAT, "the WebP cannot be read: it has no frame");
    if ((uint32_t)frame.width < width || (uint32_t)frame.height < height) /* a canvas is transparent, or else black */
        memset(out->rgb, 0, (size_t)height * width * channels);
    td_status s = decode_frame(&frame, channels, out, err);
    WebPDemuxReleaseIterator(&frame);
    if (s == TD_OK && has_alpha) td_picture_over_white(out->rgb, (size_t)height * width);
    return s;
}

td_status td_decode_webp(const uint8_t *bytes, size_t n, uint64_t max_pixels, td_picture *out, uint32_t *orientation,
                         td_error *err) {
    const WebPData        file = {bytes, n};
    WebPBitstreamFeatures features;
    WebPDemuxer          *demux = WebPGetFeatures(bytes, n, &features) == VP8_STATUS_OK ? WebPDemux(&file) : NULL;
    if (!demux) return td_fail(err, TD_EFORMAT, "the WebP cannot be read: it is damaged or cut off");
    *orientation = orientation_of(demux);
    td_status s = decode(demux, features.has_alpha, max_pixels, out, err);
    WebPDemuxDelete(demux);
    return s;
}
