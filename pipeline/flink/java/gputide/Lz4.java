package gputide;

/**
 * Blocks of LZ4 (github.com/lz4/lz4: doc/lz4_Block_format.md): sequences of a token, whose high four bits are the
 * number of literal bytes and whose low four bits that of copied ones less 4, 15 meaning that further bytes are added;
 * the literals; two bytes of how far back the copy begins. The last sequence ends with its literals.
 */
final class Lz4 {
    private static final int COPY_MIN = 4;
    private static final String DAMAGED = "its blocks are no LZ4";

    private Lz4() {}

    /**
     * Unpacks a block.
     *
     * @param from the bytes, of which the block is all behind {@code at}
     * @param size bytes that it holds
     */
    static byte[] unpacked(byte[] from, int at, int size) throws Unreadable {
        byte[] to = new byte[size];
        int end = from.length;
        int place = 0;
        while (at < end) {
            int token = from[at++] & 0xFF;
            int literals = token >>> 4;
            if (literals == 15) {
                int more;
                do {
                    more = at < end ? from[at++] & 0xFF : -1;
                    literals += more;
                } while (more == 255 && literals <= size);
            }
            if (literals < 0 || literals > end - at || literals > size - place) {
                throw new Unreadable(DAMAGED);
            }
            System.arraycopy(from, at, to, place, literals);
            at += literals;
            place += literals;
            if (at == end) {
                break;
            }
            if (at + 2 > end) {
                throw new Unreadable(DAMAGED);
            }
            int back = Bytes.getShort(from, at);
            at += 2;
            int copied = token & 15;
            if (copied == 15) {
                int more;
                do {
                    more = at < end ? from[at++] & 0xFF : -size - COPY_MIN;
                    copied += more;
                } while (more == 255 && copied <= size);
            }
            copied += COPY_MIN;
            if (back == 0 || back > place || copied < COPY_MIN || copied > size - place) {
                throw new Unreadable(DAMAGED);
            }
            copy(to, place, back, copied);
            place += copied;
        }
        if (place != size) {
            throw new Unreadable("it holds " + place + " bytes and declares " + size);
        }
        return to;
    }

    private static void copy(byte[] to, int place, int back, int size) {
        int start = place - back;
        if (back == 1) {
            java.util.Arrays.fill(to, place, place + size, to[start]);
            return;
        }
        // What is copied may overlap what it is copied to: each turn doubles what can be copied at once.
        for (int done = 0; done < size; ) {
            int piece = Math.min(size - done, place + done - start);
            System.arraycopy(to, start, to, place + done, piece);
            done += piece;
        }
    }
}
