// Frames wait in the FIFO until they are whole, so a slow writer can never starve a frame that is on the line.
module ethernet_mii_tx (
    input  logic        clk_in,
    input  logic        rst_in,
    output logic [3:0]  mii_txd_out,
    output logic        mii_tx_en_out,

    input  logic        axis_clk_in,
    input  logic        axis_rst_in,
    input  logic        axis_valid_in,
    input  logic [31:0] axis_data_in,
    input  logic [3:0]  axis_strb_in,
    input  logic        axis_last_in,
    output logic        axis_ready_out
);
    localparam DEPTH = 512;
    localparam COUNT_W = $clog2(DEPTH) + 1;
    localparam PREAMBLE_NIBBLES = 16;  // the last one ends the start frame delimiter
    localparam CRC_NIBBLES = 8;
    localparam GAP_NIBBLES = 24;

    typedef enum logic [2:0] {IDLE, PREAMBLE, PAYLOAD, CRC, GAP} state_t;

    // The shift register runs from bit 31 down in the specification's terms; held mirrored, neither the bytes nor the
    // result have to be reversed, and the line's nibble is the natural step.
    function automatic [31:0] crc_step(input [31:0] crc, input [3:0] nibble);
        crc_step = crc;
        for (int i = 0; i < 4; i++) crc_step = (crc_step >> 1) ^ (crc_step[0] ^ nibble[i] ? 32'hEDB88320 : 0);
    endfunction

    function automatic [COUNT_W-1:0] gray(input [COUNT_W-1:0] value);
        gray = value ^ (value >> 1);
    endfunction

    // AXI side
    logic               full;
    logic [COUNT_W-1:0] frames_in, frames_in_gray;

    wire push = axis_valid_in && !full;
    assign axis_ready_out = !full;

    always_ff @(posedge axis_clk_in or posedge axis_rst_in)
        if (axis_rst_in) {frames_in, frames_in_gray} <= 0;
        else if (push && axis_last_in) begin
            frames_in <= frames_in + 1;
            frames_in_gray <= gray(frames_in + 1);
        end

    // MII side
    state_t             state;
    logic [4:0]         count;
    logic [31:0]        crc, word;
    logic [3:0]         strb;
    logic               last, empty, pop;
    logic [COUNT_W-1:0] frames_out, gray_meta, gray_sync;

    ethernet_fifo_cdc #(.WIDTH(37), .DEPTH(DEPTH)) u_fifo (
        .wr_clk_i(axis_clk_in), .wr_rst_i(axis_rst_in), .wr_push_i(push), .wr_full_o(full),
        .wr_data_i({axis_last_in, axis_strb_in, axis_data_in}),
        .rd_clk_i(clk_in), .rd_rst_i(rst_in), .rd_pop_i(pop), .rd_empty_o(empty),
        .rd_data_o({last, strb, word})
    );

    wire [2:0] bytes = strb[0] + strb[1] + strb[2] + strb[3];
    wire       word_end = count == 2 * bytes - 1;
    wire       frame_waits = !empty && gray(frames_out) != gray_sync;
    wire [3:0] data_nibble = word[4*count[2:0] +: 4];
    wire [3:0] crc_nibble = ~crc[4*count[2:0] +: 4];

    // The FIFO answers a clock after the pop.
    assign pop = (state == PREAMBLE && count == PREAMBLE_NIBBLES - 1) || (state == PAYLOAD && word_end && !last);

    always_ff @(posedge clk_in or posedge rst_in)
        if (rst_in) {gray_sync, gray_meta} <= 0;
        else {gray_sync, gray_meta} <= {gray_meta, frames_in_gray};

    always_ff @(posedge clk_in or posedge rst_in)
        if (rst_in) begin
            state <= IDLE;
            {count, crc, frames_out, mii_txd_out, mii_tx_en_out} <= 0;
        end else begin
            count <= count + 1;
            {mii_tx_en_out, mii_txd_out} <= 0;
            case (state)
                IDLE: begin
                    count <= 0;
                    crc <= '1;
                    if (frame_waits) begin
                        frames_out <= frames_out + 1;
                        state <= PREAMBLE;
                    end
                end
                PREAMBLE: begin
                    {mii_tx_en_out, mii_txd_out} <= {1'b1, count == PREAMBLE_NIBBLES - 1 ? 4'hD : 4'h5};
                    if (count == PREAMBLE_NIBBLES - 1) begin
                        count <= 0;
                        state <= PAYLOAD;
                    end
                end
                PAYLOAD: begin
                    {mii_tx_en_out, mii_txd_out} <= {1'b1, data_nibble};
                    crc <= crc_step(crc, data_nibble);
                    if (word_end) begin
                        count <= 0;
                        if (last) state <= CRC;
                    end
                end
                CRC: begin
                    {mii_tx_en_out, mii_txd_out} <= {1'b1, crc_nibble};
                    if (count == CRC_NIBBLES - 1) begin
                        count <= 0;
                        state <= GAP;
                    end
                end
                GAP: if (count == GAP_NIBBLES - 2) state <= IDLE;  // whose clock is the gap's last
                default: state <= IDLE;
            endcase
        end
endmodule
