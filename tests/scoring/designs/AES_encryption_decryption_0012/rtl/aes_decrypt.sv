module aes_decrypt #(
    parameter NBW_KEY  = 256,
    parameter NBW_DATA = 128
) (
    input  logic                clk,
    input  logic                rst_async_n,
    input  logic                i_update_key,
    input  logic [NBW_KEY-1:0]  i_key,
    input  logic                i_start,
    input  logic [NBW_DATA-1:0] i_data,
    output logic                o_done,
    output logic [NBW_DATA-1:0] o_data
);

    localparam logic [3:0] ROUNDS     = 14;
    localparam int         NBW_EX_KEY = 128 * (ROUNDS + 1);

    function automatic logic [7:0] xtime(input logic [7:0] b);
        return {b[6:0], 1'b0} ^ (b[7] ? 8'h1b : 8'h00);
    endfunction

    // Byte k of a block stands in row k % 4 and column k / 4.
    function automatic logic [0:127] inv_shift_rows(input logic [0:127] s);
        for (int k = 0; k < 16; k++)
            inv_shift_rows[8*((k + 4 * (k % 4)) % 16) +: 8] = s[8*k +: 8];
    endfunction

    // The inverse matrix is that of MixColumns, {02 03 01 01}, times {05 00 04 00}: with 4 * (a[r] + a[r+2]) added to
    // both bytes first, the coefficients 0e, 0b, 0d, 09 come out.
    function automatic logic [0:127] inv_mix_columns(input logic [0:127] s);
        logic [7:0] a [0:3];
        logic [7:0] even, odd;
        for (int c = 0; c < 4; c++) begin
            even = xtime(xtime(s[32*c     +: 8] ^ s[32*c + 16 +: 8]));
            odd  = xtime(xtime(s[32*c + 8 +: 8] ^ s[32*c + 24 +: 8]));
            for (int r = 0; r < 4; r++)
                a[r] = s[32*c + 8*r +: 8] ^ (r % 2 == 0 ? even : odd);
            for (int r = 0; r < 4; r++)
                inv_mix_columns[32*c + 8*r +: 8] = xtime(a[r] ^ a[(r+1) % 4]) ^ a[(r+1) % 4] ^ a[(r+2) % 4] ^ a[(r+3) % 4];
        end
    endfunction

    logic [0:NBW_EX_KEY-1] expanded_key;
    logic                  key_ready, accept, busy;
    logic [3:0]            round;  // counts down, as the round keys do
    logic [0:127]          state, shifted, sub_bytes, round_key, keyed;

    assign accept    = i_start && o_done;
    assign shifted   = inv_shift_rows(state);
    assign round_key = expanded_key[128*round +: 128];
    assign keyed     = (round == ROUNDS ? state : sub_bytes) ^ round_key;

    for (genvar k = 0; k < 16; k++) begin : state_bytes
        inv_sbox inv_sub_byte (.i_data(shifted[8*k +: 8]), .o_data(sub_bytes[8*k +: 8]));
    end

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            busy  <= 1'b0;
            round <= '0;
            state <= '0;
        end else if (accept) begin
            busy  <= 1'b1;
            round <= ROUNDS;
            state <= i_data;
        end else if (busy && key_ready) begin
            busy  <= round != 0;
            round <= round == 0 ? '0 : round - 1'b1;
            state <= round == 0 || round == ROUNDS ? keyed : inv_mix_columns(keyed);
        end
    end

    aes_ke key_expansion (
        .clk           (clk),
        .rst_async_n   (rst_async_n),
        .i_start       (accept && i_update_key),
        .i_key         (i_key),
        .o_idle        (key_ready),
        .o_done        (),
        .o_expanded_key(expanded_key)
    );

    assign o_done = !busy;
    assign o_data = state;

endmodule
