module aes_encrypt #(
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

    localparam logic [3:0] ROUNDS = 14;

    function automatic logic [7:0] xtime(input logic [7:0] b);
        return {b[6:0], 1'b0} ^ (b[7] ? 8'h1b : 8'h00);
    endfunction

    // Byte k of a block stands in row k % 4 and column k / 4.
    function automatic logic [0:127] shift_rows(input logic [0:127] s);
        for (int k = 0; k < 16; k++)
            shift_rows[8*k +: 8] = s[8*((k + 4 * (k % 4)) % 16) +: 8];
    endfunction

    function automatic logic [0:127] mix_columns(input logic [0:127] s);
        logic [7:0] a [0:3];
        for (int c = 0; c < 4; c++) begin
            for (int r = 0; r < 4; r++)
                a[r] = s[32*c + 8*r +: 8];
            for (int r = 0; r < 4; r++)
                mix_columns[32*c + 8*r +: 8] = xtime(a[r] ^ a[(r+1) % 4]) ^ a[(r+1) % 4] ^ a[(r+2) % 4] ^ a[(r+3) % 4];
        end
    endfunction

    // ---- Key expansion: four words per cycle, until the last round key is there

    logic [0:127] round_key [0:ROUNDS];
    logic [3:0]   newest;               // newest round key that belongs to the current key; 1 after loading
    logic [7:0]   rcon;
    logic [0:127] older, newer;         // the eight words before the next ones
    logic [0:31]  sub_in, substituted, temp;
    logic [0:31]  word_0, word_1, word_2, word_3;
    logic         rcon_step;            // first word's index is a multiple of 8, not only of 4
    logic         load_key;

    assign load_key  = i_update_key && o_done;
    assign rcon_step = newest[0];
    assign older     = round_key[newest-1];
    assign newer     = round_key[newest];
    assign sub_in    = rcon_step ? {newer[104:127], newer[96:103]} : newer[96:127];

    for (genvar k = 0; k < 4; k++) begin : key_bytes
        sbox sub_word (.i_data(sub_in[8*k +: 8]), .o_data(substituted[8*k +: 8]));
    end

    assign temp   = rcon_step ? substituted ^ {rcon, 24'h0} : substituted;
    assign word_0 = older[ 0: 31] ^ temp;
    assign word_1 = older[32: 63] ^ word_0;
    assign word_2 = older[64: 95] ^ word_1;
    assign word_3 = older[96:127] ^ word_2;

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            newest <= 1;
            rcon   <= 8'h01;
            for (int k = 0; k <= ROUNDS; k++)
                round_key[k] <= '0;
        end else if (load_key) begin
            newest       <= 1;
            rcon         <= 8'h01;
            round_key[0] <= i_key[255:128];
            round_key[1] <= i_key[127:0];
        end else if (newest != ROUNDS) begin
            newest              <= newest + 1'b1;
            round_key[newest+1] <= {word_0, word_1, word_2, word_3};
            if (rcon_step)
                rcon <= xtime(rcon);
        end
    end

    // ---- Rounds: the key of round n is in its register one cycle ahead, even if both start together

    logic [3:0]   round;  // 0: idle
    logic [0:127] state, sub_bytes, shifted;

    for (genvar k = 0; k < 16; k++) begin : state_bytes
        sbox sub_byte (.i_data(state[8*k +: 8]), .o_data(sub_bytes[8*k +: 8]));
    end

    assign shifted = shift_rows(sub_bytes);

    always_ff @(posedge clk or negedge rst_async_n) begin
        if (!rst_async_n) begin
            round <= '0;
            state <= '0;
        end else if (o_done) begin
            if (i_start) begin
                round <= 1;
                state <= i_data ^ (load_key ? i_key[255:128] : round_key[0]);
            end
        end else begin
            round <= round == ROUNDS ? '0 : round + 1'b1;
            state <= (round == ROUNDS ? shifted : mix_columns(shifted)) ^ round_key[round];
        end
    end

    assign o_done = round == 0;
    assign o_data = state;

endmodule
