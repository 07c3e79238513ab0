// Sends the selected part of `data_in` bit by bit through its own receiver and shows what arrived, in binary and in Gray code.
module sync_serial_communication_tx_rx (
    input  logic        clk,
    input  logic        reset_n,
    input  logic [2:0]  sel,
    input  logic [63:0] data_in,
    output logic [63:0] data_out,
    output logic        done,
    output logic [63:0] gray_out
);
    logic serial_data, serial_clk, tx_done;

    tx_block transmitter (
        .clk(clk),
        .reset_n(reset_n),
        .data_in(data_in),
        .sel(sel),
        .serial_out(serial_data),
        .done(tx_done),
        .serial_clk(serial_clk)
    );

    rx_block receiver (
        .clk(clk),
        .reset_n(reset_n),
        .data_in(serial_data),
        .serial_clk(serial_clk),
        .sel(sel),
        .done(done),
        .data_out(data_out)
    );

    // `data_out` changes only as `done` rises, so its Gray code does, too.
    binary_to_gray_conversion converter (.data(data_out), .gray_out(gray_out));
endmodule

// Transmitter: takes a word whenever it is idle and a width is selected, and sends it least significant bit first.
module tx_block (
    input  logic        clk,
    input  logic        reset_n,
    input  logic [63:0] data_in,
    input  logic [2:0]  sel,
    output logic        serial_out,
    output logic        done,
    output logic        serial_clk
);
    logic [63:0] data_reg;
    logic [6:0] bit_count;
    logic clk_on;

    assign done = bit_count == 0;
    assign serial_out = data_reg[0];

    always_ff @(posedge clk or negedge reset_n)
        if (!reset_n) begin
            data_reg <= 0;
            bit_count <= 0;
        end else if (!done) begin
            data_reg <= data_reg >> 1;
            bit_count <= bit_count - 1;
        end else begin
            data_reg <= data_in;
            case (sel)
                3'd1:    bit_count <= 8;
                3'd2:    bit_count <= 16;
                3'd3:    bit_count <= 32;
                3'd4:    bit_count <= 64;
                default: bit_count <= 0;
            endcase
        end

    // The gate opens and closes while the clock is low, so that only whole pulses come through.
    always_ff @(negedge clk or negedge reset_n)
        if (!reset_n) clk_on <= 0;
        else clk_on <= !done;

    assign serial_clk = clk && clk_on;
endmodule

// Receiver: collects one bit for each pulse of the serial clock; bits above the selected width stay 0.
module rx_block (
    input  logic        clk,
    input  logic        reset_n,
    input  logic        data_in,
    input  logic        serial_clk,
    input  logic [2:0]  sel,
    output logic        done,
    output logic [63:0] data_out
);
    logic [63:0] bits, received;
    logic [5:0] bit_count, last;
    logic [2:0] sel_last_clk, width;

    // The transmitter looked at `sel` one clock before the first pulse. The width of that moment holds for the whole word,
    // whatever `sel` does meanwhile.
    always_ff @(posedge clk or negedge reset_n)
        if (!reset_n) sel_last_clk <= 0;
        else sel_last_clk <= sel;

    always_comb
        case (width)
            3'd1:    last = 7;
            3'd2:    last = 15;
            3'd3:    last = 31;
            default: last = 63;
        endcase

    always_comb begin
        received = bit_count == 0 ? 64'd0 : bits;
        received[bit_count] = data_in;
    end

    always_ff @(posedge serial_clk or negedge reset_n)
        if (!reset_n) begin
            bits <= 0;
            bit_count <= 0;
            width <= 0;
            data_out <= 0;
            done <= 0;
        end else begin
            bits <= received;
            if (bit_count == 0) width <= sel_last_clk;
            bit_count <= bit_count == last ? 6'd0 : bit_count + 6'd1;
            done <= bit_count == last;
            if (bit_count == last) data_out <= received;
        end
endmodule

// Each bit of the Gray code tells whether a bit of the word differs from the next higher one.
module binary_to_gray_conversion (
    input  logic [63:0] data,
    output logic [63:0] gray_out
);
    assign gray_out = data ^ (data >> 1);
endmodule
